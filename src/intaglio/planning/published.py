"""What others measured and published, beside what is planned for the same jobs: memory, and tokens a second. No torch.

Nothing in the planner is fitted to these points. What a point was run with and its page does not say is taken from its
program at that date, and stands at the point. A miss (memory beyond 10 %, tokens beyond 30 %) has its cause beside it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from intaglio.planning.classic import zero_bytes
from intaglio.planning.devices import Device, find_device
from intaglio.planning.job_plan import plan_job
from intaglio.planning.jobs import JobSpec
from intaglio.planning.shards import chunk
from intaglio.planning.speeds import Execution, assumptions
from intaglio.planning.step_time import step_time
from intaglio.specs import DecoderSpec, dtype_bytes
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.parallel import ParallelSpec
from intaglio.specs.quantization import QuantizationSpec

__all__ = ["Line", "Point", "lines", "misses", "points"]

GIB = 1 << 30
Specs = Callable[[str], DecoderSpec]
WITHIN = {"tokens/s": 0.3, "GiB": 0.1, "GB": 0.1}

_TITAN_H100 = "torchtitan, benchmarks of December 2024"
_TITAN_A100 = "torchtitan, performance page of 2024"


@dataclass(frozen=True)
class Line:
    """One figure.

    Attributes:
        name: of the point.
        unit: tokens/s of one device, GiB or GB.
        published, predicted: in it.
        source: of the first.
        at_most: whether what is published is a bound (a device that it fits into), not a measurement.
        cause: of a miss.
    """

    name: str
    unit: Literal["tokens/s", "GiB", "GB"]
    published: float
    predicted: float
    source: str
    at_most: bool = False
    cause: str = ""

    @property
    def error(self) -> float:
        """Signed, of the published figure."""
        return self.predicted / self.published - 1

    @property
    def hit(self) -> bool:
        """Whether it is as near as it should be, or within the bound."""
        return self.error <= 0 if self.at_most else abs(self.error) <= WITHIN[self.unit]

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {**vars(self), "error": self.error, "hit": self.hit}


@dataclass(frozen=True)
class Point:
    """A run that somebody published.

    Attributes:
        name: model, devices, layout.
        source: of the figures.
        spec: of the model.
        job: what was done.
        layout: of the ranks.
        device: of each.
        execution: how it was run.
        tokens: a second and device, if published.
        gib: of memory, if published: what PyTorch's allocator had reserved at most, on the rank that needed most.
        beside: bytes that their program needs and ours does not, by what they are; negative where it is the other way.
        causes: of misses, by unit.
    """

    name: str
    source: str
    spec: DecoderSpec
    job: JobSpec
    layout: ParallelSpec
    device: Device
    execution: Execution
    tokens: float | None = None
    gib: float | None = None
    beside: tuple[tuple[str, int], ...] = ()
    causes: tuple[tuple[str, str], ...] = ()

    def lines(self) -> Iterator[Line]:
        """Each published figure beside ours."""
        causes = dict(self.causes)
        if self.tokens is not None:
            time = step_time(self.spec, self.job, self.layout, self.device, self.execution)
            found = time.tokens_per_second
            yield Line(self.name, "tokens/s", self.tokens, found, self.source, cause=causes.get("tokens/s", ""))
        if self.gib is not None:
            bytes_ = plan_job(self.spec, self.job, self.layout).peak_bytes + sum(size for _, size in self.beside)
            yield Line(self.name, "GiB", self.gib, bytes_ / GIB, self.source, cause=causes.get("GiB", ""))


def lines(specs: Specs) -> list[Line]:
    """All of them.

    Args:
        specs: gives the spec of a preset by its name.
    """
    measured = [line for point in points(specs) for line in point.lines()]
    return [*_zero(), *measured, *_qlora(specs)]


@dataclass(frozen=True)
class _Titan:
    """torchtitan's runs: bf16 under FSDP2 with a plain loss, AdamW in many kernels, rotary angles as complex numbers,
    and an RMSNorm that PyTorch of that time made of six operations in fp32. Its selective checkpointing makes every
    second product again.

    What its program holds at the loss beside what ours does (`parallelisms/parallelize_llama.py`, `train.py` and
    `metrics.py` of 2024, read after the figures were known; these are what the allocator had reserved):

    - both tables are one FSDP group, gathered from the first to the last, and so is the last layer from its forward on;
    - the logits in bf16 are freed before the backward, but theirs is the one block that is too small for what comes;
    - a compiler does not keep what no operation wants, such as a layer's last product.
    """

    specs: Specs

    @cached_property
    def h100(self) -> Device:
        """96 GB at 2.4 TB/s, and 500 W of 700: where power is short, clocks go with its cube root (dynamic power is as
        frequency times voltage squared, and voltage goes with frequency). That gives 884 TFLOP/s, between the NVL
        card's 835 and the SXM card's 989, as its page has it."""
        device, clock = find_device("h100-96"), (500 / 700) ** (1 / 3)
        return replace(device, flops={dtype: flops * clock for dtype, flops in device.flops.items()})

    @cached_property
    def a100(self) -> Device:
        return find_device("a100")

    def run(self, device: Device, *, compiled: bool = False, **how: Any) -> Execution:
        """Eager or compiled; a compiler of that time knows no complex numbers, and the loss is outside of it."""
        changes = {"rotary_bytes": 20, "loss_bytes": 30} if compiled else {"norm_bytes": 36}
        assumed = replace(assumptions(device, compiled=compiled), **changes, optimizer_bytes=92)
        return Execution(assumed, **how)

    def point(
        self, name: str, model: str, layout: dict[str, Any], device: Device, run: Execution, **more: Any
    ) -> Point:
        figures = {key: more.pop(key) for key in ("tokens", "gib", "causes") if key in more}
        products = 2 if more.get("checkpointing") == "selective" else 1
        job = JobSpec(job="pretrain", chunk=None, documents=False, products=products, **{"sequence": 8192, **more})
        spec = self.specs(model)
        if job.sequence > spec.context_limit:
            spec = spec.updated(max_position_embeddings=job.sequence)
        source = _TITAN_H100 if device.name.startswith("h100") else _TITAN_A100
        ranks = ParallelSpec(**layout)
        beside = tuple(_at_the_loss(spec, job, ranks, compiled="compiled" in name)) if ranks.pp.ranks == 1 else ()
        return Point(name, source, spec, job, ranks, device, run, beside=beside, **figures)


def _at_the_loss(spec: DecoderSpec, job: JobSpec, layout: ParallelSpec, *, compiled: bool) -> Iterator[tuple[str, int]]:
    """What torchtitan's program has there and ours has not; see `_Titan`."""
    itemsize, tokens = dtype_bytes(job.dtype), chunk(job.tokens, layout.cp, 0)
    rows = chunk(spec.vocab_size, layout.tp, 0)
    last = spec.blocks[-1].num_parameters(spec.hidden_size) // layout.tp
    yield "embeddings, gathered", rows * spec.hidden_size * itemsize
    yield "last layer, gathered", last * itemsize
    yield "logits in bf16, freed", tokens * rows * itemsize
    if compiled and job.checkpointing == "selective":
        yield "last products, not kept", -tokens * spec.hidden_size * itemsize * spec.num_layers


def points(specs: Specs) -> list[Point]:
    """Runs that were measured."""
    titan = _Titan(specs)
    return [*_eight_billion(titan), *_long(titan), *_larger(titan), *_older(titan)]


_GATHERED = (
    (
        "GiB",
        "4.3 GiB of it go with asynchronous TP, whose gathered sequences (2 GiB each) lie outside of the allocator; "
        "that this one still has blocks of theirs at the loss is likely, and not shown",
    ),
)
_ONE_FORWARD = (
    (
        "GiB",
        "theirs takes 9.8 GiB more than interleaved, though by every count it keeps less: how layers were cut and how "
        "many micro-batches there were the page does not say",
    ),
)
_CONTEXT = (("tokens/s", "theirs falls faster than attention grows, from four ranks on; the page does not say why"),)


def _eight_billion(titan: _Titan) -> Iterator[Point]:
    h100 = titan.h100
    eager, fused, fp8 = (
        titan.run(h100, again=0.5),
        titan.run(h100, compiled=True, again=0.5),
        titan.run(h100, compiled=True, again=0.5, fp8=True),
    )
    job: dict[str, Any] = {"micro_batch": 2, "checkpointing": "selective"}
    for count, figures in (
        (8, ((eager, "", 5762, 82.4), (fused, ", compiled", 6667, 77.0), (fp8, ", compiled, fp8", 8532, 76.8))),
        (128, ((eager, "", 5605, 67.0), (fused, ", compiled", 6514, 62.0), (fp8, ", compiled, fp8", 8380, 61.8))),
    ):
        layout: dict[str, Any] = {"dp": count, "zero": 3}
        for run, words, tokens, gib in figures:
            name = f"Llama 3.1 8B, {count} H100, FSDP{words}"
            yield titan.point(name, "llama3.1-8b", layout, h100, run, tokens=tokens, gib=gib, **job)


def _long(titan: _Titan) -> Iterator[Point]:
    """One sequence a group of ranks, longer than the model is meant for."""
    h100 = titan.h100
    run = titan.run(h100, compiled=True, fp8=True)
    for ranks, tokens, gib in ((1, 3890, 83.9), (2, 2540, 84.2), (4, 1071, 84.0), (8, 548, 84.5)):
        sequence = 32_768 * ranks
        yield titan.point(
            f"Llama 3.1 8B, 8 H100, FSDP {8 // ranks} x CP {ranks}, {sequence:,} tokens, compiled, fp8",
            "llama3.1-8b",
            {"dp": 8 // ranks, "cp": ranks, "zero": 3, "cp_method": "all_gather"},
            h100,
            run,
            sequence=sequence,
            checkpointing=1,
            tokens=tokens,
            gib=gib,
            causes=_CONTEXT,
        )


def _larger(titan: _Titan) -> Iterator[Point]:
    """The 405B runs do not say how many micro-batches a pipeline has: torchtitan then took as many as ranks."""
    h100 = titan.h100
    plain, beside = (titan.run(h100, compiled=True, fp8=True, async_tp=more) for more in (False, True))
    two = {"dp": 32, "tp": 8, "zero": 3}
    for run, words, tokens, gib, causes in (
        (plain, "", 829, 71.9, _GATHERED),
        (beside, ", asynchronous TP", 876, 67.6, ()),
    ):
        name = f"Llama 3.1 70B, 256 H100, FSDP 32 x TP 8, compiled, fp8{words}"
        yield titan.point(
            name,
            "llama3.1-70b",
            two,
            h100,
            run,
            micro_batch=16,
            checkpointing=1,
            tokens=tokens,
            gib=gib,
            causes=causes,
        )
    for schedule, words, tokens, gib, causes in (
        ("1f1b", "1F1B", 100, 82.5, _ONE_FORWARD),
        ("interleaved_1f1b", "interleaved 1F1B", 128, 72.7, ()),
    ):
        layout = {"dp": 8, "tp": 8, "zero": 1, "pp": {"ranks": 8, "schedule": schedule}}
        yield titan.point(
            f"Llama 3.1 405B, 512 H100, FSDP 8 x TP 8 x PP 8, {words}, compiled, fp8, asynchronous TP",
            "llama3.1-405b",
            layout,
            h100,
            beside,
            micro_batch=4,
            accumulation=8,
            checkpointing=1,
            tokens=tokens,
            gib=gib,
            causes=causes,
        )


def _older(titan: _Titan) -> Iterator[Point]:
    a100, layout = titan.a100, {"dp": 64, "zero": 3}
    selective, full = titan.run(a100, again=0.5), titan.run(a100)
    yield titan.point(
        "Llama 3 8B, 64 A100, FSDP", "llama3-8b", layout, a100, selective, checkpointing="selective", tokens=2973
    )
    yield titan.point("Llama 3 70B, 64 A100, FSDP", "llama3-70b", layout, a100, full, checkpointing=1, tokens=331)


def _zero() -> Iterator[Line]:
    """Model states of 7.5 billion parameters over 64 ranks: the paper's own formula, which `classic` has."""
    source = "Rajbhandari et al. 2020, arXiv 1910.02054, figure 1"
    for stage, published in enumerate((120.0, 31.4, 16.6, 1.9)):
        name = "7.5B, 64 ranks, model states, " + (f"ZeRO-{stage}" if stage else "no ZeRO")
        yield Line(name, "GB", published, zero_bytes(7.5e9, 64, stage) / 1e9, source)


def _qlora(specs: Specs) -> Iterator[Line]:
    """What fits where; the paper pages its optimizer, and has sequences of 512 tokens one by one."""
    source = "Dettmers et al. 2023, arXiv 2305.14314, sections 1 and 4"
    job = JobSpec(
        adapter=LoRASpec(r=64),
        quantization=QuantizationSpec(),
        optimizer="paged_adamw",
        sequence=512,
        checkpointing=1,
        documents=False,
    )
    for name, model, gib in (("33B on 24 GB", "llama-33b", 24e9 / GIB), ("65B on 48 GB", "llama-65b", 48e9 / GIB)):
        peak = plan_job(specs(model), job).peak_bytes / GIB
        yield Line(f"QLoRA, {name}", "GiB", gib, peak, source, at_most=True)
    parameters = specs("llama-65b").num_parameters()
    yield Line("65B, all weights in 16 bits, more than", "GB", 780.0, 12 * parameters / 1e9, source)


def misses(found: Sequence[Line]) -> list[Line]:
    """Those that are not as near as they should be."""
    return [line for line in found if not line.hit]
