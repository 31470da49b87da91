"""What to change where a job does not fit, and what each change gains: every one is planned anew. No torch.

A change keeps the job what it is (the same objective, sequence and tokens of a step) where that is possible; those that
do not (another adapter, shorter sequences) come after, whatever they gain.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from intaglio.errors import UserError
from intaglio.planning.job_plan import JobPlan, plan_job
from intaglio.planning.jobs import JobSpec
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.parallel import ParallelSpec
from intaglio.specs.quantization import QuantizationSpec

__all__ = ["Change", "changes"]


@dataclass(frozen=True)
class Change:
    """Something that takes less.

    Attributes:
        what: in words.
        settings: the same as fields of the job, and of the layout behind `parallel.`; see `recipes.keys_of`.
        peak_bytes: then.
        gain: bytes less than before, on the rank that needs most.
        alike: whether the same is learned, in the same steps.
    """

    what: str
    settings: dict[str, Any]
    peak_bytes: int
    gain: int
    alike: bool

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return dict(vars(self))


_Changed = tuple[str, dict[str, Any], JobSpec, ParallelSpec, bool]


def changes(plan: JobPlan, *, cpu: bool = False) -> list[Change]:
    """What makes the peak smaller: first what leaves the training as it is, of these the greatest gain first."""
    found = []
    for what, settings, job, layout, alike in _candidates(plan.job, plan.layout, cpu):
        try:
            peak = plan_job(plan.spec, job, layout, cpu=cpu).peak_bytes
        except UserError:  # the model cannot be laid out so
            continue
        if peak < plan.peak_bytes:
            found.append(Change(what, settings, peak, plan.peak_bytes - peak, alike))
    return sorted(found, key=lambda change: (not change.alike, -change.gain))


def _candidates(job: JobSpec, layout: ParallelSpec, cpu: bool) -> Iterator[_Changed]:
    for what, settings, alike in _of_job(job):
        yield what, _plain(settings), job.updated(**settings), layout, alike
    for what, settings in _of_layout(layout, cpu):
        changed = _valid(layout, settings)
        if changed is None:
            continue
        micro_batches, rest = divmod(job.accumulation * layout.dp, changed.dp)
        told = {f"parallel.{key}": value for key, value in settings.items()}
        if rest or not micro_batches:
            yield what, told, job, changed, False
        elif micro_batches == job.accumulation:
            yield what, told, job, changed, True
        else:
            told["accumulation"] = micro_batches
            yield what, told, job.updated(accumulation=micro_batches), changed, True


def _of_job(job: JobSpec) -> Iterator[tuple[str, dict[str, Any], bool]]:
    if job.checkpointing != 1:
        yield "compute each layer again in the backward", {"checkpointing": 1}, True
    if job.checkpointing == 0:
        yield "keep products and attention, compute the rest again", {"checkpointing": "selective"}, True
    if job.micro_batch % 2 == 0:
        halves = {"micro_batch": job.micro_batch // 2, "accumulation": 2 * job.accumulation}
        yield "half the micro-batch, twice as many of them", halves, True
    if job.chunk is None or job.chunk > 256:
        yield "the logits of fewer tokens at once", {"chunk": 256}, True
    if job.optimizer == "adamw":
        yield "the optimizer's moments in the host's memory", {"optimizer": "paged_adamw"}, True
        yield "Muon, one moment in place of two for matrices", {"optimizer": "muon"}, False
    if job.draws and job.at_once > 16:
        yield "draw fewer answers at once", {"at_once": max(job.at_once // 4, 16)}, True
    if job.dtype == "float32":
        yield "compute in bfloat16", {"dtype": "bfloat16"}, False
    if job.job == "ppo" and job.value == "own":
        yield "a critic on the policy's own features", {"value": "shared"}, False
    if job.adapter is None:
        yield "LoRA in place of all weights", {"adapter": LoRASpec()}, False
    if job.quantization is None:
        settings = {"adapter": job.adapter or LoRASpec(), "quantization": QuantizationSpec()}
        yield "QLoRA: frozen weights in 4 bits", settings, False
    if job.sequence > 512:
        yield "sequences half as long", {"sequence": job.sequence // 2}, False


def _of_layout(layout: ParallelSpec, cpu: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """With as many ranks, but for the last one; beside a CPU there is no other memory to move anything to."""
    if layout.zero < 3 and layout.dp > 1:
        yield f"share out more: zero {layout.zero + 1}", {"zero": layout.zero + 1}
    if layout.zero < 2 and layout.dp > 1:
        yield "share out everything: zero 3", {"zero": 3}
    if layout.hsdp > 1:
        yield "one group of shards", {"hsdp": 1}
    if layout.dp % 2 == 0:
        smaller = {"dp": layout.dp // 2, "hsdp": 1}
        yield "twice as many ranks share each matrix, half as many read other data", {**smaller, "tp": 2 * layout.tp}
        yield "twice as many ranks share each sequence, half as many read other data", {**smaller, "cp": 2 * layout.cp}
    if layout.zero >= 2 and not layout.offload and not cpu:
        yield "shards in the host's memory", {"offload": True}
    if layout.dp > 1 or layout.zero:
        yield "twice as many ranks", {"dp": 2 * layout.dp}


def _valid(layout: ParallelSpec, settings: dict[str, Any]) -> ParallelSpec | None:
    try:
        return layout.updated(**settings)
    except ValueError:  # such a layout there is not
        return None


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value.plain() if hasattr(value, "plain") else value for key, value in settings.items()}
