"""Heads: a score for each class, or one (a reward), at the end of a text or at each of its tokens.

Where a text ends is told by positions and lengths, never by comparing ids with a pad id: padding left or right, how
much of it, and a pad token that is the EOS make no difference.

Legend: B batch, T tokens, N tokens of a packed row, E features, D documents, C classes.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from intaglio.models.decoder import Decoder
from intaglio.models.recurrent import RecurrentEncoder
from intaglio.parts.context import PAD, Packed
from intaglio.specs import DecoderSpec, RecurrentSpec

__all__ = [
    "PooledClassifier",
    "SequenceClassifier",
    "SummaryEncoder",
    "Tagger",
    "decoder_of",
    "init_head",
    "last_real",
    "lasts_of",
]

_STD = 0.02  # as all of GPT-1's matrices (Radford et al. 2018, section 4.1)


class SequenceClassifier(nn.Module):
    """A decoder and one matrix that scores the last token of a text (Radford et al. 2018, section 3.2).

    Args:
        decoder: what reads the text; taken over, not copied.
        num_labels: C; 1 for a reward.
        labels: their names, in order; none gives `LABEL_0`, ... as transformers does.
    """

    def __init__(self, decoder: Decoder, num_labels: int, labels: Sequence[str] = ()) -> None:
        super().__init__()
        assert num_labels > 0, "a head has at least one score"
        self.decoder = decoder
        self.labels = tuple(labels) or tuple(f"LABEL_{i}" for i in range(num_labels))
        assert len(self.labels) == num_labels, f"{len(self.labels)} names for {num_labels} labels"
        like = decoder.embed_tokens.weight
        self.score = nn.Linear(decoder.spec.hidden_size, num_labels, bias=False, device=like.device, dtype=like.dtype)

    @property
    def spec(self) -> DecoderSpec:
        """The decoder's."""
        return self.decoder.spec

    @property
    def num_labels(self) -> int:
        """C"""
        return self.score.out_features

    def tie_weights(self) -> None:
        """See `Decoder.tie_weights`."""
        self.decoder.tie_weights()

    def drop_outputs(self) -> None:
        """Frees the decoder's output matrix, unless it is the embedding matrix; what is left predicts no tokens."""
        if not self.spec.tie_embeddings:
            self.decoder.register_module("lm_head", nn.Module())

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """The scores of each row.

        Args:
            ids: (B, T).
            positions: (B, T), PAD over padding (see `parts.context.positions_of`); None: there is no padding.

        Returns:
            (B, C), read at each row's last real token.
        """
        hidden = self.decoder.hidden_states(ids, positions)
        last = hidden.new_full((len(ids),), ids.shape[1] - 1, dtype=torch.long)
        return self.score_at(hidden, last if positions is None else last_real(positions))

    def packed(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """The scores (D, C) of documents that lie end to end in `ids` (1, N)."""
        places = torch.cat([torch.arange(length, device=ids.device) for length in lengths])[None]
        hidden = self.decoder.hidden_states(ids, places, Packed(lengths))
        return self.score_packed(hidden[0], lengths)

    def score_at(self, hidden: Tensor, last: Tensor) -> Tensor:
        """(B, T, E) and the place in each row (B,) -> (B, C)"""
        scores: Tensor = self.score(hidden[torch.arange(len(last), device=last.device), last])
        return scores

    def score_packed(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """(N, E) and the lengths of the documents in it -> (D, C)"""
        scores: Tensor = self.score(hidden[lasts_of(lengths).to(hidden.device)])
        return scores


class SummaryEncoder(Protocol):
    """What a `PooledClassifier` asks of its encoder; an `nn.Module`."""

    @property
    def output_size(self) -> int:
        """E"""

    def summary(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """A row in one vector: ids (B, T) and how many of them are real (B,) -> (B, E)"""


class PooledClassifier(nn.Module):
    """A text in one vector, and one matrix that scores it: over a bag of words or a recurrent encoder.

    Args:
        encoder: what reads the text; taken over, not copied.
        num_labels: C.
    """

    def __init__(self, encoder: SummaryEncoder, num_labels: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.score = nn.Linear(encoder.output_size, num_labels)

    def forward(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, T), padded on the right, and lengths (B,) -> (B, C)"""
        scores: Tensor = self.score(self.encoder.summary(ids, lengths))
        return scores


class Tagger(nn.Module):
    """A score for each class at each token; the encoder is as a rule bidirectional, since tags hang on what follows.

    Args:
        encoder: what reads the text; taken over, not copied.
        num_labels: C.
    """

    def __init__(self, encoder: RecurrentEncoder, num_labels: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.score = nn.Linear(encoder.output_size, num_labels)

    @property
    def spec(self) -> RecurrentSpec:
        """The encoder's."""
        return self.encoder.spec

    def forward(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, T), padded on the right, and lengths (B,) -> (B, T, C); what stands behind a row's end means nothing."""
        hidden, _ = self.encoder.hidden_states(ids, lengths=lengths)
        scores: Tensor = self.score(hidden)
        return scores


def last_real(positions: Tensor) -> Tensor:
    """The place of each row's last real token: (B, T) positions, PAD over padding -> (B,)."""
    return torch.where(positions < PAD, positions, -1).argmax(dim=1)


def lasts_of(lengths: Sequence[int]) -> Tensor:
    """The place of the last token of each of some documents that lie end to end: (D,)."""
    return torch.tensor(lengths).cumsum(dim=0) - 1


def decoder_of(model: nn.Module) -> Decoder:
    """The decoder of a model: itself, or what is under its head."""
    decoder = model if isinstance(model, Decoder) else getattr(model, "decoder", None)
    assert isinstance(decoder, Decoder), f"{type(model).__name__} has no decoder"
    return decoder


@torch.no_grad()
def init_head(model: SequenceClassifier, seed: int) -> None:
    """A head to train from: N(0, 0.02)."""
    generator = torch.Generator().manual_seed(seed)
    model.score.weight.copy_(torch.empty(model.score.weight.shape).normal_(0.0, _STD, generator=generator))
