"""Cross-attention: queries from the target, keys and values from what the encoder made of the source.

Legend: B batch, T tokens of the target, S tokens of the source, E features of the model, H query heads, K key/value
heads, D head width.
"""

from torch import Tensor

from intaglio.parts.attention import Projections
from intaglio.parts.memory import CrossContext

__all__ = ["CrossAttention"]


class CrossAttention(Projections):
    """See `AttentionSpec`; there are no positions and there is no mask but the source's end."""

    def forward(self, x: Tensor, memory: CrossContext) -> Tensor:
        """(B, T, E) -> (B, T, E)"""
        query = self.split(self.q_proj(x), self.q_norm)
        return self.merge(memory.attend(self.layer, query, self.keys_values, self.scores))

    def keys_values(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, E) -> keys and values, (B, K, S, D) each"""
        return self.split(self.k_proj(states), self.k_norm), self.split(self.v_proj(states))
