"""A bag of words: what a text says when nobody looks at the order.

Legend: B batch, T tokens, E features, V vocabulary.
"""

import torch
from torch import Tensor, nn

__all__ = ["BagOfWords"]


class BagOfWords(nn.Module):
    """The mean of a text's embeddings: the baseline that models with an order must beat.

    Args:
        vocab_size: V.
        embedding_size: E.
    """

    def __init__(self, vocab_size: int, embedding_size: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, embedding_size)

    @property
    def output_size(self) -> int:
        """E"""
        return self.embed_tokens.embedding_dim

    def summary(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Equal for equal bags, to the last bit: tokens are summed in the order of their ids.

        Args:
            ids: (B, T), padded on the right.
            lengths: (B,); None: every row is full.

        Returns:
            (B, E); 0 for a row without tokens.
        """
        steps = ids.shape[1]
        lengths = torch.full((len(ids),), steps, device=ids.device) if lengths is None else lengths
        real = torch.arange(steps, device=ids.device) < lengths[:, None]  # (B, T), and so after sorting: pads go last
        bags = ids.masked_fill(~real, self.embed_tokens.num_embeddings).sort(dim=1).values
        vectors = self.embed_tokens(bags.masked_fill(~real, 0)) * real[..., None]  # (B, T, E)
        total: Tensor = vectors.sum(dim=1) / lengths.clamp(min=1)[:, None]
        return total
