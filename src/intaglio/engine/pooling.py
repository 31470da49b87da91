"""A text in one vector, and a text's scores: one forward that keeps nothing, over as many texts as a step may hold.

Legend: D texts, N tokens of a batch of them end to end, E features, C scores.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intaglio.engine.interface import Pooling
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier, decoder_of, lasts_of
from intaglio.parts.context import Packed

__all__ = ["embed", "score"]


@torch.inference_mode()
def embed(model: Any, prompts: Sequence[Sequence[int]], pooling: Pooling, normalize: bool, budget: int) -> Tensor:
    """(D, E) in fp32: what the last layer makes of each text, in one vector.

    Args:
        model: a decoder, or one with a head.
        prompts: ids, none of them empty.
        pooling: see `Pooling`.
        normalize: whether vectors get length 1.
        budget: tokens in one forward, unless a single text has more.
    """

    def pooled(hidden: Tensor, lengths: list[int]) -> Tensor:
        if pooling == "last":
            return hidden[lasts_of(lengths).to(hidden.device)].float()
        return torch.stack([text.float().mean(dim=0) for text in hidden.split(lengths)])

    vectors = _in_batches(decoder_of(model), prompts, budget, pooled)
    return F.normalize(vectors, dim=-1) if normalize else vectors


@torch.inference_mode()
def score(model: SequenceClassifier, prompts: Sequence[Sequence[int]], budget: int) -> Tensor:
    """(D, C) in fp32: the head's scores of each text; arguments as of `embed`."""
    return _in_batches(model.decoder, prompts, budget, lambda *batch: model.score_packed(*batch).float())


class _OwnPlans(Packed):
    """Each text has the rotary base of its own length."""

    def planned(self, positions: Tensor) -> Tensor:
        lengths = positions.new_tensor(self._lengths)
        return lengths.repeat_interleave(lengths)[None]  # (1, N)


def _in_batches(
    decoder: Decoder, prompts: Sequence[Sequence[int]], budget: int, pooled: Callable[[Tensor, list[int]], Tensor]
) -> Tensor:
    """What `pooled` makes of features (N, E) and of the lengths of the texts, for all texts."""
    device, parts = decoder.embed_tokens.weight.device, []
    for batch in _batches(prompts, budget):
        lengths = [len(prompt) for prompt in batch]
        ids = torch.tensor([[token for prompt in batch for token in prompt]], device=device)
        places = torch.cat([torch.arange(length, device=device) for length in lengths])[None]
        parts.append(pooled(decoder.hidden_states(ids, places, _OwnPlans(lengths))[0], lengths))
    return torch.cat(parts)


def _batches(prompts: Sequence[Sequence[int]], budget: int) -> Iterator[list[Sequence[int]]]:
    batch: list[Sequence[int]] = []
    for prompt in prompts:
        if batch and sum(map(len, batch)) + len(prompt) > budget:
            yield batch
            batch = []
        batch.append(prompt)
    yield batch
