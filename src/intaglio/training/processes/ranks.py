"""One process or many: all that training asks of the others, so that nothing else of it knows of them.

`ALONE` answers for a single process, `together.Together` for one of many that torchrun started. Ranks that read other
data are counted; what is said of a batch, a loss or a stop goes through `gather`.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import torch
from torch import nn

from intaglio.errors import UserError
from intaglio.specs.parallel import ParallelSpec
from intaglio.training.batching.batches import Batch
from intaglio.training.lesson import Exam, Lesson, Mark, Part
from intaglio.training.stepping.master import MasterWeights

if TYPE_CHECKING:
    from intaglio.parallel.checkpoint import SavesTogether

__all__ = ["ALONE", "Ranks", "join", "start_line"]

T = TypeVar("T")


class Ranks(Protocol):
    """What training asks.

    Attributes:
        number: of this rank among those that read other data, from 0.
        count: of those.
        first: whether this rank is the one that prints, logs and writes.
    """

    number: int
    count: int
    first: bool

    def gather(self, value: T) -> list[T]:
        """What each rank that reads other data has, by number."""

    def heard(self, received: list[int]) -> bool:
        """Whether any rank has received a signal; all have then."""

    def device(self, model: nn.Module) -> torch.device:
        """Where batches belong."""

    def lay_out(self, model: nn.Module, dtype: torch.dtype, make: Callable[[], T]) -> tuple[MasterWeights, T]:
        """Puts a model into the dtype that it computes in and shares it out.

        Args:
            model: fp32 where it trains.
            dtype: see `MasterWeights`.
            make: called with the model whole and in that dtype; what it makes is given back.
        """

    def learn(self, model: nn.Module, lesson: Lesson, batches: Sequence[Batch]) -> list[Part]:
        """Adds up the gradients of this rank's micro-batches of a step, all of them."""

    def examine(self, model: nn.Module, exam: Exam, batches: Sequence[Batch]) -> list[Mark]:
        """What an exam says of each batch; without gradients."""

    def sum_gradients(self, masters: MasterWeights) -> None:
        """After the last: every gradient is that of all ranks."""

    def clip(self, parameters: Sequence[nn.Parameter], largest: float) -> float:
        """The norm of all gradients, which is at most `largest` afterwards."""

    def whole(self, model: Any) -> AbstractContextManager[Any]:
        """The model with all its weights, for as long as the block runs; all ranks enter and leave together."""

    def in_turn(self) -> AbstractContextManager[None]:
        """The first rank of each machine runs the block before the others do, which then find what it left on disk.

        Where its UserError ends the block, the other ranks leave with SystemExit, without a word.
        """

    def named(self, what: str) -> AbstractContextManager[None]:
        """Turns a wait that was too long into an error that names who did not come to `what`."""

    def saves(self) -> "SavesTogether | None":
        """How all ranks write a checkpoint; None where one process does."""


class _Alone:
    number, count, first = 0, 1, True

    def gather(self, value: T) -> list[T]:
        return [value]

    def heard(self, received: list[int]) -> bool:
        return bool(received)

    def device(self, model: nn.Module) -> torch.device:
        return next(model.parameters()).device

    def lay_out(self, model: nn.Module, dtype: torch.dtype, make: Callable[[], T]) -> tuple[MasterWeights, T]:
        return MasterWeights(model, dtype), make()

    def learn(self, model: nn.Module, lesson: Lesson, batches: Sequence[Batch]) -> list[Part]:
        return [lesson.backward(model, batch) for batch in batches]

    def examine(self, model: nn.Module, exam: Exam, batches: Sequence[Batch]) -> list[Mark]:
        return [exam.arriving(model, batch)[1] for batch in batches]

    def sum_gradients(self, masters: MasterWeights) -> None:
        pass

    def clip(self, parameters: Sequence[nn.Parameter], largest: float) -> float:
        return float(torch.nn.utils.clip_grad_norm_(parameters, largest))

    def whole(self, model: Any) -> AbstractContextManager[Any]:
        return nullcontext(model)

    def in_turn(self) -> AbstractContextManager[None]:
        return nullcontext()

    def named(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()

    def saves(self) -> None:
        return None


ALONE: Final[Ranks] = _Alone()
"""A single process."""


def join(spec: ParallelSpec | None, device: str) -> Ranks:
    """The ranks of this run: those that torchrun started, or this process alone.

    Args:
        spec: the recipe's layout; None is one process.
        device: of the recipe.

    Raises:
        UserError: there are more or fewer processes than the layout is for.
        SystemExit: the same on all ranks but the first: one line is enough.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if spec is None and world == 1:
        return ALONE
    from intaglio.parallel.mesh import require_world

    spec = spec or ParallelSpec()
    try:
        require_world(spec, world)
    except UserError:
        if int(os.environ.get("RANK", "0")):
            sys.exit(2)
        raise
    if world == 1:
        return ALONE
    from intaglio.training.processes.staged import Staged
    from intaglio.training.processes.together import Together

    return (Staged if spec.pp.ranks > 1 else Together)(spec, device)


def start_line() -> str:
    """What starts a program like this one, for a hint: the processes of several ranks are started alike."""
    return "intaglio" if os.environ.get("WORLD_SIZE", "1") == "1" else "torchrun ... -m intaglio.cli.main"
