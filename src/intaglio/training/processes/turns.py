"""Ranks take turns: what all get for one step is together what a single process with more accumulation gets for it.

Every rank reads the whole step, in the same order, and keeps its own micro-batches. So what is a matter of the whole
step, such as a share of its targets, is right on all of them, and a run goes on with any number of ranks.
"""

from typing import Any

from torch import Tensor

from intaglio.training.batching.batches import Batch, BatchStream
from intaglio.training.processes.ranks import Ranks
from intaglio.training.state import Buffered

__all__ = ["in_turns"]


def in_turns(stream: BatchStream, ranks: Ranks) -> BatchStream:
    """This rank's turns of a stream; the stream itself where there is one rank."""
    if ranks.count == 1:
        return stream
    if type(stream) is BatchStream:  # each of its batches is a matter of its own
        return stream.of_rank(ranks.number, ranks.count)
    turns: Any = (_BufferedTurns if isinstance(stream, Buffered) else _Turns)(stream, ranks)
    return turns


class _Turns:
    def __init__(self, stream: Any, ranks: Ranks) -> None:
        self._stream, self._ranks = stream, ranks

    def step(self, accumulation: int) -> list[Batch]:
        """See `BatchStream.step`."""
        batches: list[Batch] = self._stream.step(accumulation * self._ranks.count)
        return batches[self._ranks.number :: self._ranks.count]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _BufferedTurns(_Turns):
    def tensors(self) -> dict[str, Tensor]:
        """See `Buffered`."""
        found: dict[str, Tensor] = self._stream.tensors()
        return found

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """See `Buffered`."""
        self._stream.load_tensors(tensors)
