"""-log p(tag) at every token.

Legend: N tokens of the batch, C classes.
"""

import torch
import torch.nn.functional as F
from torch import nn

from intaglio.models.heads import Tagger
from intaglio.training.batching.batches import Batch
from intaglio.training.objectives.metrics import Mean
from intaglio.training.objectives.objective import Loss
from intaglio.training.objectives.rows import as_rows, real_places

__all__ = ["TagLoss"]


class TagLoss:
    """Over batches whose labels are tags (see `tagged`)."""

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        """See `Objective`; `correct` tokens have the highest score at their tag."""
        assert isinstance(model, Tagger)
        ids, lengths = as_rows(batch.ids[0], batch.documents)
        scores = real_places(model(ids, lengths), lengths)  # (N, C)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        total = F.cross_entropy(scores, batch.labels[0], reduction="sum")
        return Loss(total, metrics={"accuracy": Mean.of(scores.argmax(dim=-1) == batch.labels[0])})
