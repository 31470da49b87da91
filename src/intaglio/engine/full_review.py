"""Decoding without a cache: for each new token the whole target is looked over again. What caching must equal."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from intaglio.engine.session import right_padded
from intaglio.models.encoder_decoder import EncoderDecoder

__all__ = ["FullReview"]


class FullReview:
    """An encoder-decoder that keeps what it made of the sources, and of the targets nothing but their ids; a `Session`.

    Legend: B rows, V vocabulary.
    """

    continues: ClassVar[bool] = False

    def __init__(self, model: EncoderDecoder, max_tokens: Sequence[int]) -> None:
        self._model = model

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """See `Session`."""
        device = next(self._model.parameters()).device
        self._source, self._lengths = right_padded(prompts, device)
        self._targets = torch.empty(len(prompts), 0, dtype=torch.long, device=device)
        self._memory = self._model.encode(self._source, self._lengths)
        return self.step(torch.full((len(prompts),), self._model.spec.start_token_id, device=device))

    def step(self, ids: Tensor) -> Tensor:
        """See `Session`."""
        self._targets = torch.cat((self._targets, ids[:, None]), dim=1)
        hidden = self._model.hidden_states(self._targets, self._memory)[:, -1]
        return self._model.logits(hidden)

    def reorder(self, rows: Tensor) -> None:
        """See `Session`."""
        self._source, self._lengths, self._targets = self._source[rows], self._lengths[rows], self._targets[rows]
        self._memory = self._model.encode(self._source, self._lengths)
