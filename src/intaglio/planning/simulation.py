"""A pipeline's table run in the head: when each action starts and ends, and how much of the time ranks wait. No torch.

A rank takes its actions in order and starts each as soon as what it needs is there: a forward what the stage before
made, a backward the gradient from the stage behind. What goes from one rank to another takes a while, beside the
computing. Nothing else costs time: an engine has its own overhead on top, the more the shorter the chunks are.

Legend: p ranks, v stages of a rank, M micro-batches; F forward, I and W the halves of a backward.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from intaglio.planning.schedules import Action, Kind, Table

__all__ = ["Run", "Slot", "StageTime", "simulate"]


@dataclass(frozen=True)
class StageTime:
    """Seconds (or any other unit) that one micro-batch takes in a stage.

    Attributes:
        forward: F.
        inputs: I, the backward that gives the gradient of the stage's input.
        weights: W, the backward that gives the weights' gradients; a whole backward is I and W.
    """

    forward: float = 1.0
    inputs: float = 1.0
    weights: float = 1.0

    def of(self, action: Action) -> float:
        """What an action takes."""
        times = {"F": self.forward, "B": self.inputs + self.weights, "I": self.inputs, "W": self.weights}
        return times[action.kind]


@dataclass(frozen=True)
class Slot:
    """An action in its time."""

    rank: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Run:
    """A table with times.

    Attributes:
        table: that was run.
        rows: what each rank does and when.
    """

    table: Table
    rows: tuple[tuple[Slot, ...], ...]

    @property
    def makespan(self) -> float:
        """From the first action of any rank to the last."""
        return max(row[-1].end for row in self.rows)

    def busy(self, rank: int) -> float:
        """What a rank computes."""
        return sum(slot.end - slot.start for slot in self.rows[rank])

    @property
    def bubble(self) -> float:
        """Share of all ranks' time, from the first action to the last of any, in which they compute nothing."""
        return 1 - sum(map(self.busy, range(len(self.rows)))) / (len(self.rows) * self.makespan)

    @property
    def gaps(self) -> tuple[float, ...]:
        """The same share inside each rank's own span, from its first action to its last."""
        return tuple(1 - self.busy(rank) / (row[-1].end - row[0].start) for rank, row in enumerate(self.rows))


def simulate(table: Table, times: Sequence[StageTime] | None = None, send: float = 0.0) -> Run:
    """When everything happens.

    Args:
        table: of the schedule.
        times: for each stage; None has F, I and W take 1 / v, so that a rank's whole F takes 1 whatever v is.
        send: from one rank to another, for what one micro-batch hands on.

    Raises:
        ValueError: the orders wait for each other; no table that `schedule` makes does.
    """
    share = 1 / table.chunks
    ends: dict[Action, float] = {}
    rows: list[list[Slot]] = [[] for _ in table.orders]
    lasting = times or [StageTime(share, share, share)] * table.stages
    waiting = list(range(table.ranks))
    while waiting:
        moved = [_advance(table, rank, rows[rank], ends, lasting, send) for rank in waiting]
        waiting = [rank for rank in waiting if len(rows[rank]) < len(table.orders[rank])]
        if waiting and not any(moved):
            raise ValueError(f"ranks {waiting} wait for each other")
    return Run(table, tuple(map(tuple, rows)))


def _advance(
    table: Table,
    rank: int,
    row: list[Slot],
    ends: dict[Action, float],
    times: Sequence[StageTime],
    send: float,
) -> int:
    """Runs what the rank can run by now; how many actions that was."""
    before = len(row)
    for action in table.orders[rank][before:]:
        needed = _needed(table, action, ends)
        if needed is None:
            break
        there, other = needed
        came = there + send * (other is not None and table.rank_of(other) != rank)
        start = max(came, row[-1].end if row else 0.0)
        row.append(Slot(rank, action, start, start + times[action.stage].of(action)))
        _hand_on(table, row, ends)
    return len(row) - before


def _hand_on(table: Table, row: Sequence[Slot], ends: dict[Action, float]) -> None:
    """What the last action made is there, and what the forward made that is one piece with it."""
    last, before = row[-1], row[-2:-1]
    if last.action not in table.paired:
        ends[last.action] = last.end
    ends.update({slot.action: last.end for slot in before if slot.action in table.paired})


def _needed(table: Table, action: Action, ends: dict[Action, float]) -> tuple[float, int | None] | None:
    """When the thing it needs is made, and in which stage if that is another one; None while it is not."""
    if action.kind == "W":  # its I stands before it in the same order
        return 0.0, None
    beside = action.stage + (-1 if action.kind == "F" else 1)
    if not 0 <= beside < table.stages:
        return 0.0, None
    kinds: Sequence[Kind] = ("F",) if action.kind == "F" else ("B", "I")
    made = [Action(kind, beside, action.micro_batch) for kind in kinds]
    found = [ends[one] for one in made if one in ends]
    return (found[0], beside) if found else None
