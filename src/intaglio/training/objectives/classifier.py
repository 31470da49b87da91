"""A class for each document, with next-token prediction beside it (Radford et al. 2018, section 3.2, equation 5).

The loss of an optimizer step is

    sum over its documents of -log p(label) / documents  +  lm_weight * sum over its tokens of -log p(next) / targets

with both counts taken over the whole step, so that splitting a step into micro-batches changes nothing: the loop
divides by documents, and `LabelledBatch.lm_share` turns that into a division by targets for the second sum.

Legend: N tokens of the batch, D documents, E features, C classes.
"""

import torch
import torch.nn.functional as F
from torch import nn

from intaglio.models.heads import SequenceClassifier
from intaglio.parts.context import Packed
from intaglio.training.batching.batches import Batch
from intaglio.training.batching.labelled import LabelledBatch
from intaglio.training.objectives.language_model import LanguageModel
from intaglio.training.objectives.metrics import Mean
from intaglio.training.objectives.mixtures import balance
from intaglio.training.objectives.objective import Loss

__all__ = ["Classifier"]


class Classifier:
    """-log p(label | document), read at each document's last token.

    Args:
        lm_weight: of the next-token loss; GPT-1 has 0.5. At 0 the output matrix is not asked for.
        chunk: see `LanguageModel`.
    """

    def __init__(self, lm_weight: float = 0.5, chunk: int = 1024) -> None:
        self.lm_weight = lm_weight
        self._language_model = LanguageModel(chunk)

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        """See `Objective`; the batch's targets are its documents, of which it tells the `accuracy`."""
        assert isinstance(model, SequenceClassifier)
        assert isinstance(batch, LabelledBatch)
        decoder = model.decoder
        hidden = decoder.hidden_states(batch.ids, batch.positions, Packed(batch.documents))[0]  # (N, E)
        scores = model.score_packed(hidden, batch.documents)  # (D, C)
        classes = batch.classes.to(scores.device)
        total = F.cross_entropy(scores.to(torch.promote_types(scores.dtype, torch.float32)), classes, reduction="sum")
        if self.lm_weight:
            total = total + self.lm_weight * batch.lm_share * self._language_model.total(decoder, hidden, batch)
        extra, experts = balance(decoder)
        return Loss(total, extra, {"accuracy": Mean.of(scores.argmax(dim=-1) == classes)}, experts)
