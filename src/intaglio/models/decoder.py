"""The decoder-only language model: embeddings, blocks, and the output matrix.

Legend: B batch, T tokens, E features, V vocabulary.
"""

import torch
from torch import Tensor, nn

from intaglio.models.stack import Stack
from intaglio.parts.context import AttentionContext, Causal, Padded
from intaglio.specs import DecoderSpec

__all__ = ["Decoder"]


class Decoder(Stack):
    """See `DecoderSpec`. The same forward trains, prefills and decodes: the context makes the difference."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__(spec, spec.blocks, spec.final_norm)
        self.spec = spec
        self.lm_head = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)
        self.tie_weights()

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
        return self.run(ids, positions, context)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., E) -> (..., V)"""
        logits = self.lm_head(hidden)
        cap = self.spec.logit_softcap
        return cap * torch.tanh(logits / cap) if cap else logits
