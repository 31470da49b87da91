"""What ranks cannot share whatever the model is: kinds of training that a layout does not allow. No torch.

The planner and a recipe that is to be run ask the same: what is refused has one reason, and one way to mend it.
What depends on the model's sizes is `layouts`' to say, what depends on the layout alone `specs.parallel`'s.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from intaglio.errors import UserError
from intaglio.planning.jobs import JobSpec
from intaglio.planning.schedules import require_micro_batches
from intaglio.specs.parallel import ParallelSpec, PipelineSpec

__all__ = ["Training", "of_job", "require_shareable", "require_whole_step"]

_ASKED = ("ppo", "grpo", "kto")
_FORKED = ("reward", "dpo", "orpo", "kto")
_HALVED = ("interleaved_zero_bubble", "zbv_zero_bubble", "dual_pipe_v")

_Rule = tuple[bool, str, str, str]


@dataclass(frozen=True)
class Training:
    """What of a job or a recipe decides.

    Attributes:
        objective: as a recipe calls it.
        optimizer: see `JobSpec`.
        adapted, quantized: whether an adapter trains, beside weights of a few bits.
        stored: whether log-probabilities of the reference were computed before.
        compiled, noisy: `compile` and `neftune` of a recipe.
        ptx: whether PPO learns plain text too.
    """

    objective: str
    optimizer: str = "adamw"
    adapted: bool = False
    quantized: bool = False
    stored: bool = False
    compiled: bool = False
    noisy: bool = False
    ptx: bool = False


def of_job(job: JobSpec) -> Training:
    """What a job has of that."""
    return Training(
        job.job,
        job.optimizer,
        adapted=job.adapter is not None,
        quantized=job.quantization is not None,
        stored=job.kept_reference == "stored",
        compiled=job.compile,
        noisy=job.neftune > 0,
        ptx=job.ptx is not None,
    )


def require_shareable(training: Training, layout: ParallelSpec) -> None:
    """Refuses a layout under which this cannot be trained.

    Raises:
        UserError: names what it is that cannot be shared.
    """
    for refused, where, what, mend in (*_over_data(training, layout), *_in_pieces(training, layout)):
        if refused:
            raise UserError(what, where=where, mend=mend)
    for refused, what, mend in _in_stages(training, layout) if layout.pp.ranks > 1 else ():
        if refused:
            raise UserError(what, where="pp", mend=mend)


def require_whole_step(pipeline: PipelineSpec, accumulation: int) -> None:
    """Refuses a pipeline for another number of micro-batches than a step has, or for one that no schedule can order.

    Raises:
        UserError: says how many there are.
    """
    if pipeline.ranks == 1:
        return
    if pipeline.micro_batches not in (None, accumulation):
        what = f"{pipeline.micro_batches} micro-batches, and a step has accumulation {accumulation} of them"
        raise UserError(what, where="pp", mend="leave micro_batches out")
    require_micro_batches(pipeline, accumulation)


def _over_data(training: Training, layout: ParallelSpec) -> Iterator[_Rule]:
    """Ranks of dp, and what zero shares out among them."""
    lanes = "lanes carry their states from step to step, so that their batches have no turns"
    yield layout.dp > 1 and training.objective == "truncated_bptt", "dp", lanes, "take dp: 1"
    zero, kind = layout.zero > 0, training.optimizer
    whole = f"{kind} steps whole matrices, and zero {layout.zero} has shards"
    yield zero and kind != "adamw", "zero", whole, "take adamw, or zero 0"
    yield zero and training.compiled, "zero", "compile wants weights that stay where they are", "take zero 0"
    yield zero and training.ptx, "zero", "objective.ptx reads the policy twice before a backward", "take zero 0"


def _in_pieces(training: Training, layout: ParallelSpec) -> Iterator[_Rule]:
    """Ranks that share matrices, experts or sequences."""
    over = [name for name in ("tp", "ep", "cp") if getattr(layout, name) > 1]
    first = over[0] if over else ""
    yield bool(over) and training.compiled, first, f"compile knows no parts that {first} cuts", "leave compile out"
    cut = layout.tp > 1 and layout.sequence_parallel
    noise = "neftune adds noise to whole documents, and each rank has a piece of them"
    mend = "leave neftune out" + (", or take sequence_parallel: false" if cut and layout.cp == 1 else "")
    yield training.noisy and (cut or layout.cp > 1), "cp" if layout.cp > 1 else "tp", noise, mend
    blocks = f"4-bit weights lie in blocks that {first} would cut through"
    yield training.quantized and layout.tp * layout.ep > 1, first, blocks, "take dp with zero 3 for QLoRA"
    collected = layout.cp > 1 and layout.cp_method == "all_gather"
    forks = f"all_gather reads rows of plain documents, and those of {training.objective} fork"
    yield collected and training.objective in _FORKED, "cp_method", forks, "take ulysses"


def _in_stages(training: Training, layout: ParallelSpec) -> Iterator[tuple[bool, str, str]]:
    """What asks more of the model than one forward of its stages."""
    objective, schedule = training.objective, layout.pp.schedule
    whole = f"{objective} asks the whole model between its steps"
    yield objective in _ASKED, whole, "take dp with zero 3, or tp"
    below = "no stage can ask the model below its adapter"
    yield objective == "dpo" and training.adapted and not training.stored, below, "take reference precomputed"
    noise = "neftune is added where the loss is, and the embeddings are elsewhere"
    yield training.noisy, noise, "leave neftune out"
    halves = f"{schedule} halves backwards, which compile does not"
    yield training.compiled and schedule in _HALVED, halves, "take 1f1b"
