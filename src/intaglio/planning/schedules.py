"""Pipeline schedules as tables: which rank does what, in which order, by arithmetic. No torch.

The layers are cut into v * p stages, v to each of p ranks, and M micro-batches are sent through them. Four things can
be done for a micro-batch in a stage: F, its forward; B, its whole backward; or the two halves of that apart: I, the
gradient of what came in, which the stage before is waiting for, and W, the gradients of the weights, which nobody waits
for, so that they can fill a gap (Qi et al. 2023, arXiv 2401.10241).

Stages lie around the ranks in a loop (rank r has r, r + p, ...) or in a V (rank r has r and 2p - 1 - r: the last stage
is on the first rank). The orders are those in which `torch.distributed.pipelining` runs the schedules of these names.

Legend: p ranks, v stages of a rank (chunks), M micro-batches, r a rank.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from intaglio.errors import UserError
from intaglio.planning.stages import own_stages
from intaglio.specs.parallel import PipelineSpec

__all__ = [
    "Action",
    "Held",
    "Kind",
    "Table",
    "live_chunks",
    "live_peak",
    "most_held",
    "most_live",
    "require_micro_batches",
    "schedule",
]

Kind = Literal["F", "B", "I", "W"]


class Action(NamedTuple):
    """What a rank does for one micro-batch in one of its stages."""

    kind: Kind
    stage: int
    micro_batch: int


@dataclass(frozen=True)
class Table:
    """A schedule.

    Attributes:
        ranks: that hold stages.
        chunks: stages of a rank.
        micro_batches: of an optimizer step.
        orders: what each rank does, one thing after the other.
        held: the stages of each rank, in the order that a micro-batch meets them.
        paired: forwards that are one piece with the backward behind them, to be run at once where the engine can: what
            they make is handed to other ranks when both are done.
    """

    ranks: int
    chunks: int
    micro_batches: int
    orders: tuple[tuple[Action, ...], ...]
    held: tuple[tuple[int, ...], ...]
    paired: frozenset[Action] = frozenset()

    @property
    def stages(self) -> int:
        """Of the whole model."""
        return self.ranks * self.chunks

    def rank_of(self, stage: int) -> int:
        """Who holds a stage."""
        return self._holders[stage]

    @cached_property
    def _holders(self) -> dict[int, int]:
        return {stage: rank for rank, stages in enumerate(self.held) for stage in stages}


@lru_cache(maxsize=512)
def schedule(spec: PipelineSpec, micro_batches: int) -> Table:
    """The table of a pipeline.

    Args:
        spec: ranks, chunks and the name of the schedule.
        micro_batches: of an optimizer step.

    Raises:
        UserError: fewer micro-batches than the schedule needs, or a number that its rounds do not divide.
    """
    require_micro_batches(spec, micro_batches)
    paired: set[Action] = set()
    held = tuple(own_stages(spec, rank) for rank in range(spec.ranks))
    orders = tuple(_order(spec, micro_batches, rank, stages, paired) for rank, stages in enumerate(held))
    return Table(spec.ranks, spec.chunks_a_rank, micro_batches, orders, held, frozenset(paired))


def require_micro_batches(spec: PipelineSpec, micro_batches: int) -> None:
    """Refuses a number of micro-batches that the schedule cannot take.

    Raises:
        UserError: too few, or not full rounds; says how many would do.
    """
    least = {"1f1b": spec.ranks, "dual_pipe_v": 2 * spec.ranks}.get(spec.schedule, 1)
    if micro_batches < least:
        raise UserError(
            f"{micro_batches} micro-batches for {spec.schedule} over {spec.ranks} ranks, which needs {least} or more",
            mend="more micro-batches, or fewer ranks",
        )
    rounds = _rounds(spec.ranks, micro_batches)
    if spec.schedule.startswith("interleaved") and micro_batches % rounds:
        raise UserError(
            f"{micro_batches} micro-batches are not {rounds} equal rounds, which {spec.schedule} wants",
            mend=f"take a multiple of {spec.ranks}",
        )


def _rounds(ranks: int, micro_batches: int) -> int:
    """Groups of about p micro-batches that go through one chunk before the next chunk takes them."""
    return max(1, micro_batches // ranks)


def _order(
    spec: PipelineSpec, micro_batches: int, rank: int, stages: Sequence[int], paired: set[Action]
) -> tuple[Action, ...]:
    ranks, chunks = spec.ranks, spec.chunks_a_rank
    after = ranks - 1 - rank  # ranks behind this one
    match spec.schedule:
        case "gpipe":
            return (*_sweep("F", stages, range(micro_batches)), *_sweep("B", stages, range(micro_batches)))
        case "looped_bfs":
            backward = _sweep("B", stages[::-1], range(micro_batches)[::-1])
            return (*_sweep("F", stages, range(micro_batches)), *backward)
        case "zbv_zero_bubble":
            return _zbv(ranks, micro_batches, rank, stages)
        case "dual_pipe_v":
            return _dual_pipe_v(ranks, micro_batches, rank, stages, paired)
    size = micro_batches // _rounds(ranks, micro_batches) if chunks > 1 else micro_batches
    first = (chunks - 1) * size + after * (2 if spec.schedule == "interleaved_1f1b" else 1)
    lag = rank if spec.schedule == "interleaved_zero_bubble" else None
    return _one_by_one(stages, micro_batches, size, first, lag)


def _sweep(kind: Kind, stages: Sequence[int], micro_batches: Sequence[int]) -> tuple[Action, ...]:
    """All micro-batches through one stage, then through the next."""
    return tuple(Action(kind, stage, m) for stage in stages for m in micro_batches)


def _one_by_one(
    stages: Sequence[int], micro_batches: int, size: int, first: int, lag: int | None
) -> tuple[Action, ...]:
    """`first` forwards, then a forward and a backward in turn, then the backwards that are left.

    1F1B (Narayanan et al. 2019) and, with several stages, interleaved 1F1B (Narayanan et al. 2021, arXiv 2104.04473).

    Args:
        stages: of the rank.
        micro_batches: M.
        size: micro-batches that go through one stage before the next takes them.
        first: forwards before the first backward's own.
        lag: backwards are halved, and each W comes so many backwards behind its I (ZB-1P of arXiv 2401.10241); None
            leaves them whole.
    """
    starts = range(0, micro_batches, size)
    forwards = [a for m in starts for a in _sweep("F", stages, range(m, m + size))]
    halves: Kind = "B" if lag is None else "I"
    backwards = [a for m in starts for a in _sweep(halves, stages[::-1], range(m, m + size))]
    first = min(first, len(forwards))
    order = forwards[:first]
    for done, backward in enumerate(backwards):
        order += [*forwards[first + done : first + done + 1], backward]
        if lag is not None and done >= lag:
            order.append(backwards[done - lag]._replace(kind="W"))
    late = backwards[max(0, len(backwards) - lag) :] if lag else []
    return (*order, *(backward._replace(kind="W") for backward in late))


class _Row:
    """The order of a rank with two stages, 0 and 1, while it is written down: each kind takes its next micro-batch."""

    def __init__(self, stages: Sequence[int]) -> None:
        self.order: list[Action] = []
        self._stages = stages
        self._next: Counter[tuple[str, int]] = Counter()
        self._weights: deque[Action] = deque()

    def done(self, kind: Literal["F", "B"], chunk: int) -> int:
        """How many have had it; an I is the B of this count."""
        return self._next[kind, chunk]

    def forward(self, chunk: int) -> None:
        self._add("F", "F", chunk)

    def backward(self, chunk: int, whole: bool = True) -> None:
        """B; or I, whose W is owed."""
        self._add("B" if whole else "I", "B", chunk)
        if not whole:
            self._weights.append(self.order[-1]._replace(kind="W"))

    def weight(self, chunk: int | None = None) -> None:
        """The oldest W that is owed, in a chunk or in any; nothing where none is."""
        owed = [w for w in self._weights if chunk is None or w.stage == self._stages[chunk]]
        for one in owed[:1]:
            self._weights.remove(one)
            self.order.append(one)

    def _add(self, kind: Kind, counted: str, chunk: int) -> None:
        self.order.append(Action(kind, self._stages[chunk], self._next[counted, chunk]))
        self._next[counted, chunk] += 1


def _zbv(ranks: int, micro_batches: int, rank: int, stages: Sequence[int]) -> tuple[Action, ...]:
    """ZB-V (Qi et al. 2023, arXiv 2401.10241, section 6); no gap inside a rank's span where F, I and W take equally
    long. Written for 2p - 1 micro-batches at least: what are more than M are struck out."""
    row, enough = _Row(stages), max(micro_batches, 2 * ranks - 1)

    def backward(chunk: int) -> None:
        row.backward(chunk, whole=False)
        row.weight(chunk)

    for _ in range(2 * (ranks - rank) - 1):
        row.forward(0)
    for _ in range(rank):
        row.forward(1)
        row.forward(0)
    for _ in range(ranks - rank):
        row.forward(1)
        backward(1)
    while row.done("F", 1) < enough:
        if row.done("F", 0) < enough:
            row.forward(0)
        backward(0)
        row.forward(1)
        backward(1)
    for _ in range(rank):
        row.backward(0, whole=False)
        row.backward(1, whole=False)
    for _ in range(ranks - rank):
        row.backward(0, whole=False)
        row.weight(0)
    for chunk in (1, 0):
        for _ in range(enough):
            row.weight(chunk)
    return tuple(action for action in row.order if action.micro_batch < micro_batches)


def _dual_pipe_v(
    ranks: int, micro_batches: int, rank: int, stages: Sequence[int], paired: set[Action]
) -> tuple[Action, ...]:
    """DualPipe (DeepSeek-V3, arXiv 2412.19437, section 3.2) cut in half, so that each layer lies on one rank and not on
    two. In the middle a forward of one stage is one piece with a backward of the other, but the last rank's first two,
    for which others wait."""
    row, after = _Row(stages), ranks - 1 - rank

    def pair(forward: int, backward: int) -> None:
        row.forward(forward)
        if after or row.done("B", 1):
            paired.add(row.order[-1])
        row.backward(backward)

    for _ in range(2 * after):
        row.forward(0)
    for _ in range(rank + 1):
        row.forward(0)
        row.forward(1)
    for _ in range(after):
        row.backward(1, whole=False)
        row.weight()
        row.forward(1)
    for _ in range(micro_batches - 2 * ranks + rank + 1):
        pair(0, 1)
        pair(1, 0)
    for _ in range(after):
        row.backward(1)
        pair(1, 0)
    half = (rank + 1) // 2
    for place in range(rank + 1):
        row.backward(1, whole=place < half or (place == half and rank % 2 == 0))
        row.backward(0, whole=place < half)
    for _ in range(after):
        row.weight()
        row.backward(0, whole=False)
    for _ in range(rank + 1):
        row.weight()
    return tuple(row.order)


def live_chunks(table: Table) -> tuple[int, ...]:
    """The most (micro-batch, stage) pairs whose activations each rank holds at once: from F to B, or to W."""
    weights = dict.fromkeys(range(table.stages), 1)
    return tuple(live_peak(order, weights) for order in table.orders)


def live_peak(order: Sequence[Action], num_bytes: Mapping[int, int]) -> int:
    """The most bytes that a rank's activations take at once.

    Args:
        order: of the rank.
        num_bytes: of the activations of one micro-batch in each of its stages.
    """
    return sum(count * num_bytes[stage] for stage, count in most_live(order, num_bytes).items())


def most_live(order: Sequence[Action], num_bytes: Mapping[int, int]) -> Counter[int]:
    """How many micro-batches each stage holds at that moment; arguments as of `live_peak`."""
    return most_held(order, num_bytes, Counter()).live


class Held(NamedTuple):
    """How many micro-batches each stage holds when something has been done: from F to B, or to W; and of these from I
    to W."""

    live: Counter[int]
    halved: Counter[int]
    done: Action


def most_held(order: Sequence[Action], num_bytes: Mapping[int, int], waiting: Mapping[int, int]) -> Held:
    """The moment when a rank holds most.

    Args:
        order: of the rank.
        num_bytes: of the activations of one micro-batch in each of its stages.
        waiting: bytes of its gradients that wait between the halves of its backward.
    """

    def size(held: Held) -> int:
        live = sum(count * num_bytes[stage] for stage, count in held.live.items())
        return live + sum(count * waiting.get(stage, 0) for stage, count in held.halved.items())

    return max(_held(order), key=size)


def _held(order: Sequence[Action]) -> Iterator[Held]:
    """What is held after each action, before what it was done for is let go."""
    live, halved = Counter[int](), Counter[int]()
    for action in order:
        live[action.stage] += action.kind == "F"
        halved[action.stage] += action.kind == "I"
        yield Held(Counter(live), Counter(halved), action)
        live[action.stage] -= action.kind in "BW"
        halved[action.stage] -= action.kind == "W"
