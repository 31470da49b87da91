"""-log p(next token of the target | source, target so far): teacher forcing of an encoder-decoder.

With label smoothing a share of each target is spread evenly over the vocabulary (Szegedy et al. 2016, arXiv 1512.00567,
section 7): (1 - s) * -log p(target) + s * the mean of -log p over all tokens. Where a model is measured, there is none.

Legend: B pairs, T target tokens, n target tokens of all pairs, E features, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio.models.encoder_decoder import EncoderDecoder
from intaglio.models.seq2seq import Seq2Seq
from intaglio.training.batching.batches import IGNORE, Batch
from intaglio.training.batching.pairs import PairBatch
from intaglio.training.objectives.metrics import Mean
from intaglio.training.objectives.objective import Loss
from intaglio.training.objectives.rows import real_places

__all__ = ["Seq2SeqLoss"]


class Seq2SeqLoss:
    """See above.

    Args:
        label_smoothing: s.
        scheduled_sampling: see `Seq2SeqSpec`; for recurrent decoders.
    """

    def __init__(self, label_smoothing: float = 0.0, scheduled_sampling: float = 0.0) -> None:
        self.label_smoothing, self.scheduled_sampling = label_smoothing, scheduled_sampling

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        """See `Objective`."""
        assert isinstance(model, Seq2Seq | EncoderDecoder)
        assert isinstance(batch, PairBatch)
        logits = model.logits(real_places(self._hidden_states(model, batch), batch.target_lengths))  # (n, V)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        labels = batch.labels[batch.labels != IGNORE]  # (n,), pair by pair
        smoothing = self.label_smoothing if model.training else 0.0
        total = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
        metrics = {} if model.training else {"accuracy": Mean.of(logits.argmax(dim=-1) == labels)}
        return Loss(total, metrics=metrics)

    def _hidden_states(self, model: Seq2Seq | EncoderDecoder, batch: PairBatch) -> Tensor:
        """(B, T, E)"""
        memory: Any = model.encode(batch.source, batch.source_lengths)
        read = F.pad(batch.target, (1, -1), value=model.spec.start_token_id)  # what is known before each token
        if isinstance(model, Seq2Seq) and model.training and self.scheduled_sampling:
            return model.hidden_states(read, memory, batch.target_lengths, sampling=self.scheduled_sampling)
        return model.hidden_states(read, memory, batch.target_lengths)
