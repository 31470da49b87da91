"""One forward over everything that a step computes: new prompts, pieces of long ones, and single tokens, end to end.

Legend: N tokens of a step, R of them whose logits are wanted, E features, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from intaglio.engine.adapted import Adapters
from intaglio.engine.paged import Chunk, PagedContext, PagedMemory
from intaglio.models.decoder import Decoder
from intaglio.parts.moe import MixtureOfExperts

__all__ = ["Runner"]

_ROWS = 32


class Runner:
    """A decoder over a paged cache.

    Args:
        model: on its device, in its dtype.
        memory: where keys and values live.
        deterministic: whether a token's numbers must not depend, to the last bit, on what else is computed with it. A
            matrix product sums in an order that hangs on its number of rows, so all have one and the same, filled up
            with rows that nobody reads; and each token attends by itself. With experts, whose rows are as many as chose
            them, that number is 1.
        adapters: those that chunks may name; None for a model that has none.
    """

    def __init__(
        self, model: Decoder, memory: PagedMemory, *, deterministic: bool = False, adapters: Adapters | None = None
    ) -> None:
        self._model, self.memory, self._adapters = model, memory, adapters or Adapters(model)
        routed = any(isinstance(module, MixtureOfExperts) for module in model.modules())
        self._rows = (1 if routed else _ROWS) if deterministic else None

    @torch.inference_mode()
    def hidden_states(self, chunks: Sequence[Chunk]) -> Tensor:
        """Computes the chunks' tokens and keeps their keys and values.

        Args:
            chunks: of different sequences, all of whose blocks are there; those of one adapter behind each other, if
                it is to be quick.

        Returns:
            (N, E), chunk behind chunk.
        """
        if self._rows is None:
            return self._forward(chunks)
        parts = _singles(chunks)
        tiles = iter(lambda: list(islice(parts, self._rows)), [])
        return torch.cat([self._forward(tile) for tile in tiles])

    @torch.inference_mode()
    def logits(self, hidden: Tensor, adapters: Sequence[int] = ()) -> Tensor:
        """(R, E), each row under its adapter (or all without one) -> (R, V)"""
        if self._rows is None:
            return self._logits(hidden, adapters)
        tiles = hidden.split(self._rows)
        rows = [adapters[start : start + self._rows] for start in range(0, len(hidden), self._rows)]
        filled = [self._logits(_filled(tile, self._rows), mine) for tile, mine in zip(tiles, rows, strict=True)]
        return torch.cat([made[: len(tile)] for made, tile in zip(filled, tiles, strict=True)])

    def _logits(self, hidden: Tensor, adapters: Sequence[int]) -> Tensor:
        with self._adapters.running([(adapter, 1) for adapter in adapters]):
            return self._model.logits(hidden)

    def _forward(self, chunks: Sequence[Chunk]) -> Tensor:
        changed = self._adapters.layers([chunk.adapter for chunk in chunks])
        context = PagedContext(self.memory, chunks, alone=self._rows is not None, changed=changed)
        ids, positions = context.ids, context.positions
        count = ids.shape[1]
        if self._rows is not None:
            ids, positions = _filled(ids[0], self._rows)[None], _filled(positions[0], self._rows)[None]
        with self._adapters.running([(chunk.adapter, len(chunk.tokens)) for chunk in chunks]):
            hidden: Tensor = self._model.hidden_states(ids, positions, context)[0, :count]
        return hidden


def _singles(chunks: Sequence[Chunk]) -> Iterator[Chunk]:
    """Every token as a chunk of its own."""
    for chunk in chunks:
        for place, token in enumerate(chunk.tokens):
            yield replace(chunk, tokens=[token], start=chunk.start + place)


def _filled(x: Tensor, rows: int) -> Tensor:
    """(R, ...) -> (rows, ...), zeros behind."""
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, rows - len(x)))
