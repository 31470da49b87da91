"""The fastest layout that fits: a search over what ranks share, micro-batches, schedules and checkpointing. No torch.

A step's sequences are given and a layout divides them, so that all candidates learn the same from a step. Candidates
are taken in the order of a time that they cannot go below (`step_time.Timer.least`); one is timed, and then, if it is
faster than the best so far, its memory is planned, which is the dear part. When the least time of the next is more than
the second best's time, no later one can be better: what is left out cannot win.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from intaglio.errors import UserError
from intaglio.planning.devices import Device
from intaglio.planning.jobs import Checkpointing, JobSpec
from intaglio.planning.layouts import require_possible
from intaglio.planning.refusals import of_job, require_shareable
from intaglio.planning.schedules import require_micro_batches
from intaglio.planning.speeds import Execution
from intaglio.planning.step_time import StepTime, Timer
from intaglio.specs import DecoderSpec, MoESpec
from intaglio.specs.parallel import ParallelSpec, PipelineSpec, Schedule

__all__ = ["Candidate", "Fit", "Found", "Space", "candidates", "find_fit", "usual_space"]

Memory = Callable[[JobSpec, ParallelSpec], int]
"""Bytes that a rank needs at most; a `UserError` where the job cannot be laid out so."""

DEEP = 16
"""Ranks of a pipeline at most."""

LONG = 16_384
"""Tokens of a sequence from which on ranks may share it."""


@dataclass(frozen=True)
class Space:
    """What is searched: every combination that is possible.

    Attributes:
        gpus: ranks; all of them are used.
        sequences: of an optimizer step, of all ranks (comparisons or answers, where a job has these).
        tp, pp, cp, ep: ranks, see `ParallelSpec`.
        zero: stages.
        hsdp: replicas.
        micro_batch: sequences that a rank runs together.
        checkpointing: see `JobSpec`.
        schedules: of a pipeline, with stages a rank.
    """

    gpus: int
    sequences: int
    tp: tuple[int, ...] = (1,)
    pp: tuple[int, ...] = (1,)
    cp: tuple[int, ...] = (1,)
    ep: tuple[int, ...] = (1,)
    zero: tuple[int, ...] = (0, 1, 2, 3)
    hsdp: tuple[int, ...] = (1,)
    micro_batch: tuple[int, ...] = (1, 2, 4, 8)
    checkpointing: tuple[Checkpointing, ...] = (0, "selective", 1)
    schedules: tuple[tuple[Schedule, int | None], ...] = (("1f1b", None),)


@dataclass(frozen=True)
class Candidate:
    """One combination.

    Attributes:
        number: its place in the space, which decides between equals.
        job: with its micro-batch, accumulation and checkpointing.
        layout: of the ranks.
        least: seconds of a step at least.
    """

    number: int
    job: JobSpec
    layout: ParallelSpec
    least: float = field(compare=False)


@dataclass(frozen=True)
class Found:
    """A candidate that was timed.

    Attributes:
        candidate: which.
        time: of its step.
        num_bytes: that its fullest rank needs.
    """

    candidate: Candidate
    time: StepTime
    num_bytes: int

    @property
    def job(self) -> JobSpec:
        return self.candidate.job

    @property
    def layout(self) -> ParallelSpec:
        return self.candidate.layout

    @property
    def key(self) -> tuple[float, int]:
        """Faster ones first, of equals the earlier."""
        return self.time.seconds, self.candidate.number


@dataclass(frozen=True)
class Fit:
    """What the search found.

    Attributes:
        winner: the fastest that fits.
        second: the fastest that fits of another layout (another micro-batch alone is none).
        faster: of those that would be faster than the winner and do not fit, the one that needs least; only such are
            meant as looked as if they could fit.
        possible: candidates in the space.
        planned: of which memory was planned.
    """

    winner: Found
    second: Found | None
    faster: Found | None
    possible: int
    planned: int


def usual_space(spec: DecoderSpec, job: JobSpec, gpus: int, device: Device, sequences: int | None = None) -> Space:
    """What is worth a look: tensor parallelism inside a host, a pipeline over hosts, the rest data.

    GPipe and looped BFS are left out, which hold more for the same bubble, and DualPipeV, whose gain (collectives of
    one micro-batch beside the computation of another) no step time here knows.

    Args:
        spec: of the model.
        job: what is done; its `micro_batch` and `accumulation` say how many sequences a step has, if nothing else does.
        gpus: ranks.
        device: of each.
        sequences: of a step, of all ranks.

    Raises:
        UserError: no devices, or a step of no sequences.
    """
    sequences = sequences if sequences is not None else gpus * job.micro_batch * job.accumulation
    if gpus < 1 or sequences < 1:
        raise UserError(f"{gpus} devices and {sequences} sequences a step", where="--fit", mend="one or more of each")
    blocks = dict.fromkeys(spec.blocks)
    experts = next((b.feed_forward.num_experts for b in blocks if isinstance(b.feed_forward, MoESpec)), 1)
    inside = _divisors(gpus, device.per_host)
    hosts = gpus // device.per_host
    schedules: tuple[tuple[Schedule, int | None], ...] = (
        ("1f1b", None),
        ("interleaved_1f1b", 2),
        ("interleaved_zero_bubble", 2),
        ("zbv_zero_bubble", None),
    )
    return Space(
        gpus=gpus,
        sequences=sequences,
        tp=inside,
        pp=_divisors(gpus, min(spec.num_layers, DEEP)),
        cp=inside if job.sequence >= LONG else (1,),
        ep=_divisors(gpus, experts) if experts > 1 else (1,),
        hsdp=(1, hosts) if hosts > 1 else (1,),
        micro_batch=tuple(n for n in _divisors(sequences, 64)),
        schedules=schedules,
    )


def _divisors(number: int, most: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, min(number, most) + 1) if number % n == 0)


def candidates(job: JobSpec, timer: Timer, space: Space) -> Iterator[Candidate]:
    """All that is possible: of layouts, of the model under them, and of the schedule."""
    number = 0
    for layout in _layouts(space):
        if not _possible(timer.spec, job, layout):
            continue
        for micro_batch in space.micro_batch:
            count, left = divmod(space.sequences, micro_batch * layout.dp)
            if left or not count or not _fills(layout.pp, count):
                continue
            for checkpointing in space.checkpointing:
                shaped = job.updated(micro_batch=micro_batch, accumulation=count, checkpointing=checkpointing)
                yield Candidate(number, shaped, layout, timer.least(shaped, layout))
                number += 1


def _layouts(space: Space) -> Iterator[ParallelSpec]:
    for tp, pp, cp in ((tp, pp, cp) for tp in space.tp for pp in space.pp for cp in space.cp):
        dp, left = divmod(space.gpus, tp * pp * cp)
        if left or not dp:
            continue
        for pipeline in _pipelines(pp, space):
            for ep, zero, hsdp in ((e, z, h) for e in space.ep for z in space.zero for h in space.hsdp):
                try:
                    yield ParallelSpec.model_validate(
                        {"dp": dp, "zero": zero, "hsdp": hsdp, "tp": tp, "pp": pipeline, "ep": ep, "cp": cp}
                    )
                except ValueError:  # zero 2 under a pipeline, replicas that do not divide dp
                    continue


def _pipelines(ranks: int, space: Space) -> Iterator[PipelineSpec]:
    if ranks == 1:
        yield PipelineSpec()
        return
    for name, chunks in space.schedules:
        yield PipelineSpec(ranks=ranks, schedule=name, chunks=chunks)


def _possible(spec: DecoderSpec, job: JobSpec, layout: ParallelSpec) -> bool:
    shared = layout.dp * layout.cp > 1
    if layout.zero and not shared:  # nobody to share with: the same as zero 0
        return False
    try:
        require_possible(spec, layout, job.sequence)
        require_shareable(of_job(job), layout)
    except UserError:
        return False
    return True


def _fills(pipeline: PipelineSpec, micro_batches: int) -> bool:
    if pipeline.ranks == 1:
        return True
    try:
        require_micro_batches(pipeline, micro_batches)
    except UserError:
        return False
    return True


def find_fit(
    spec: DecoderSpec,
    job: JobSpec,
    device: Device,
    space: Space,
    memory: Memory,
    room: int,
    execution: Execution = Execution(),  # noqa: B008 (frozen)
    floor: Memory | None = None,
) -> Fit:
    """Searches the space.

    Args:
        spec: of the model.
        job: what is done; its micro-batch, accumulation and checkpointing are the search's to choose.
        device: of each rank.
        space: see `usual_space`.
        memory: bytes that a rank needs for a job under a layout.
        room: bytes that it has.
        execution: how it is run.
        floor: bytes that `memory` never goes below, and is quicker to say.

    Raises:
        UserError: nothing is possible, or nothing fits; then with what comes nearest.
    """
    return _Search(job, Timer(spec, device, execution), space, memory, room, floor).run()


class _Search:
    def __init__(
        self, job: JobSpec, timer: Timer, space: Space, memory: Memory, room: int, floor: Memory | None
    ) -> None:
        self.job, self.timer, self.space, self.memory, self.room, self.floor = job, timer, space, memory, room, floor
        self.winner: Found | None = None
        self.second: Found | None = None
        self.too_large: list[Found] = []
        self.smallest: int | None = None
        self.planned = 0

    def run(self) -> Fit:
        ordered = self._ordered
        for one in ordered:
            if self.second is not None and one.least * (1 - 1e-9) > self.second.time.seconds:
                break
            self._look_at(one)
        if self.winner is None:
            raise self._nothing(len(ordered))
        faster = [one for one in self.too_large if one.key < self.winner.key]
        smallest = min(faster, key=lambda one: (one.num_bytes, one.key), default=None)
        return Fit(self.winner, self.second, smallest, len(ordered), self.planned)

    @cached_property
    def _ordered(self) -> Sequence[Candidate]:
        every = candidates(self.job, self.timer, self.space)
        return sorted(every, key=lambda one: (one.least, one.number))

    def _look_at(self, one: Candidate) -> None:
        least = self.floor(one.job, one.layout) if self.floor else 0
        if least > self.room:
            self._note(least)
            return
        time = self.timer.step(one.job, one.layout)
        if not self._improves(Found(one, time, 0)):
            return
        self.planned += 1
        try:
            found = Found(one, time, self.memory(one.job, one.layout))
        except UserError:
            return
        if found.num_bytes <= self.room:
            self._keep(found)
        else:
            self._note(found.num_bytes)
            self.too_large.append(found)

    def _note(self, num_bytes: int) -> None:
        """The least that any of those that do not fit needs."""
        self.smallest = min(num_bytes, self.smallest or num_bytes)

    def _improves(self, found: Found) -> bool:
        if self.winner is None or found.key < self.winner.key:
            return True
        return _differs(found, self.winner) and (self.second is None or found.key < self.second.key)

    def _keep(self, found: Found) -> None:
        """The two fastest layouts: who is beaten may still be second."""
        if self.winner is None or found.key < self.winner.key:
            beaten, self.winner = self.winner, found
            kept = [one for one in (beaten, self.second) if one is not None and _differs(one, found)]
            self.second = min(kept, key=lambda one: one.key, default=None)
        elif _differs(found, self.winner) and (self.second is None or found.key < self.second.key):
            self.second = found

    def _nothing(self, possible: int) -> UserError:
        if not possible:
            what = f"no layout of {self.space.gpus} devices divides the model and {self.space.sequences} sequences"
            return UserError(what, where="--fit", mend="another number of devices, or of sequences a step")
        need = f" and the smallest needs {self.smallest / 2**30:.1f} GiB or more" if self.smallest else ""
        return UserError(
            f"none of {possible} layouts fits into {self.room / 2**30:.1f} GiB{need}",
            where="--fit",
            mend="more devices, shorter sequences, or an adapter (--adapter qlora)",
        )


def _differs(one: Found, other: Found) -> bool:
    return one.layout != other.layout
