"""A stack: embeddings, positions, layers, and the norm at their end. A decoder is one, an encoder-decoder has two.

Legend: B batch, T tokens, E features.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from intaglio.parts.block import Block
from intaglio.parts.context import PAD, AttentionContext
from intaglio.parts.norm import build_norm
from intaglio.parts.position import Rotaries, build_positions
from intaglio.specs import BlockSpec, DecoderSpec, EncoderDecoderSpec, NormSpec

__all__ = ["Stack"]


class Stack(nn.Module):
    """What turns ids into features.

    Args:
        spec: for the sizes, the positions and the scale of the embeddings.
        blocks: the layers.
        final_norm: what stands behind them.
        layer: the kind of layer: `Block`, or `CrossBlock`, which also reads a memory.
        dropout: see `EncoderDecoderSpec`.
    """

    def __init__(
        self,
        spec: DecoderSpec | EncoderDecoderSpec,
        blocks: Sequence[BlockSpec],
        final_norm: NormSpec | None,
        layer: type[Block] = Block,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        size = spec.hidden_size
        self.scale = spec.embedding_scale
        self.embed_tokens = nn.Embedding(spec.vocab_size, size)
        self.positions = build_positions(spec.positions, spec.max_position_embeddings, size) if spec.positions else None
        self.layers = nn.ModuleList(layer(block, size, number, dropout) for number, block in enumerate(blocks))
        self.norm = build_norm(final_norm, size) if final_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout) if dropout else None
        self._rotaries = Rotaries([block.attention for block in blocks])

    def run(self, ids: Tensor, positions: Tensor, context: AttentionContext, *more: object) -> Tensor:
        """(B, T) ids at (B, T) positions -> (B, T, E); `more` goes to every layer."""
        context.begin(positions)
        places = positions.masked_fill(positions == PAD, 0)
        x = self._embed(ids, places)
        planned = context.planned(positions) if self._rotaries else None
        for block, angles in zip(self.layers, self._rotaries.angles(places, planned, x.dtype), strict=True):
            x = block(x, angles, context, *more)
        return self.norm(x)

    def _embed(self, ids: Tensor, places: Tensor) -> Tensor:
        x: Tensor = self.embed_tokens(ids)  # (B, T, E)
        if self.scale is not None:
            x = x * torch.tensor(self.scale, dtype=x.dtype)  # rounded to the weights' dtype, as Gemma's
        x = x if self.positions is None else x + self.positions(places).to(x.dtype)
        return self.dropout(x) if self.dropout else x
