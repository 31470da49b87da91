"""One forward over everything that a step computes: new prompts, pieces of long ones, and single tokens, end to end.

Legend: N tokens of a step, R of them whose logits are wanted, E features, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

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
    """

    def __init__(self, model: Decoder, memory: PagedMemory, *, deterministic: bool = False) -> None:
        self._model, self.memory = model, memory
        routed = any(isinstance(module, MixtureOfExperts) for module in model.modules())
        self._rows = (1 if routed else _ROWS) if deterministic else None

    @torch.inference_mode()
    def hidden_states(self, chunks: Sequence[Chunk]) -> Tensor:
        """Computes the chunks' tokens and keeps their keys and values.

        Args:
            chunks: of different sequences, all of whose blocks are there.

        Returns:
            (N, E), chunk behind chunk.
        """
        if self._rows is None:
            return self._forward(PagedContext(self.memory, chunks))
        parts = _singles(chunks)
        tiles = iter(lambda: list(islice(parts, self._rows)), [])
        return torch.cat([self._forward(PagedContext(self.memory, tile, alone=True)) for tile in tiles])

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """(R, E) -> (R, V)"""
        if self._rows is None:
            return self._model.logits(hidden)
        tiles = hidden.split(self._rows)
        return torch.cat([self._model.logits(_filled(tile, self._rows))[: len(tile)] for tile in tiles])

    def _forward(self, context: PagedContext) -> Tensor:
        ids, positions = context.ids, context.positions
        count = ids.shape[1]
        if self._rows is not None:
            ids, positions = _filled(ids[0], self._rows)[None], _filled(positions[0], self._rows)[None]
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
