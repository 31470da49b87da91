"""The decoder-only language model: embeddings, blocks, and the output matrix.

Legend: B batch, T tokens, E features, V vocabulary.
"""

import torch
from torch import Tensor, nn

from intaglio.parts.block import Block
from intaglio.parts.context import PAD, AttentionContext, Causal, Padded
from intaglio.parts.norm import build_norm
from intaglio.parts.position import Angles, Rotary, build_positions
from intaglio.specs import AttentionSpec, DecoderSpec, LatentAttentionSpec, RotarySpec

__all__ = ["Decoder"]


class Decoder(nn.Module):
    """See `DecoderSpec`. The same forward trains, prefills and decodes: the context makes the difference."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.spec = spec
        size = spec.hidden_size
        self.embed_tokens = nn.Embedding(spec.vocab_size, size)
        self.positions = build_positions(spec.positions, spec.max_position_embeddings, size) if spec.positions else None
        self.layers = nn.ModuleList(Block(block, size, layer) for layer, block in enumerate(spec.blocks))
        self.norm = build_norm(spec.final_norm, size) if spec.final_norm else nn.Identity()
        self.lm_head = nn.Linear(size, spec.vocab_size, bias=False)
        self.tie_weights()
        self._rotary_keys = [_rotary_key(block.attention) for block in spec.blocks]
        self._rotaries = {key: Rotary(*key) for key in self._rotary_keys if key}

    def tie_weights(self) -> None:
        """Makes the output matrix the embedding matrix, where the spec says so; again after weights are replaced."""
        if self.spec.tie_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, ids: Tensor, positions: Tensor | None = None, context: AttentionContext | None = None) -> Tensor:
        """Logits of the next token at every place.

        Args:
            ids: (B, T).
            positions: (B, T), PAD over padding (see `parts.context.positions_of`); None counts from 0 in every row.
            context: how keys and values are read and written; None keeps none.

        Returns:
            (B, T, V).
        """
        return self.logits(self.hidden_states(ids, positions, context))

    def hidden_states(
        self, ids: Tensor, positions: Tensor | None = None, context: AttentionContext | None = None
    ) -> Tensor:
        """The same up to the output matrix: (B, T, E)."""
        if context is None:
            context = Causal() if positions is None else Padded()
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        context.begin(positions)
        places = positions.masked_fill(positions == PAD, 0)
        x = self._embed(ids, places)
        angles = self._angles(places, positions, context, x.dtype)
        for block, key in zip(self.layers, self._rotary_keys, strict=True):
            x = block(x, angles[key], context)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., E) -> (..., V)"""
        logits = self.lm_head(hidden)
        cap = self.spec.logit_softcap
        return cap * torch.tanh(logits / cap) if cap else logits

    def _embed(self, ids: Tensor, places: Tensor) -> Tensor:
        x: Tensor = self.embed_tokens(ids)  # (B, T, E)
        if self.spec.embedding_scale is not None:
            x = x * torch.tensor(self.spec.embedding_scale, dtype=x.dtype)  # rounded to the weights' dtype, as Gemma's
        return x if self.positions is None else x + self.positions(places).to(x.dtype)

    def _angles(
        self, places: Tensor, positions: Tensor, context: AttentionContext, dtype: torch.dtype
    ) -> dict[object, Angles | None]:
        """One pair of cos and sin for each kind of rotary in the model, shared by its layers."""
        planned = context.planned(positions) if self._rotaries else None
        return {None: None, **{key: rotary.angles(places, planned, dtype) for key, rotary in self._rotaries.items()}}


def _rotary_key(attention: AttentionSpec | LatentAttentionSpec) -> tuple[RotarySpec, int] | None:
    if isinstance(attention, LatentAttentionSpec):
        return attention.rope, attention.qk_rope_head_dim
    return (attention.rope, attention.width) if attention.rope else None
