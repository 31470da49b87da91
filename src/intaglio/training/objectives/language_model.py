"""Next-token cross-entropy: pretraining where every token is a target, fine-tuning where the mask says which are.

Legend: N tokens of the batch, n of them with a target, E features.
"""

from torch import Tensor, nn

from intaglio.models.decoder import Decoder
from intaglio.models.recurrent import RecurrentModel
from intaglio.parallel.vocabulary import output_matrix
from intaglio.parts.context import Packed
from intaglio.training.batching.batches import IGNORE, Batch
from intaglio.training.objectives.chunked_loss import chunked_cross_entropy
from intaglio.training.objectives.metrics import Mean
from intaglio.training.objectives.mixtures import balance
from intaglio.training.objectives.objective import Loss

__all__ = ["LanguageModel", "accuracy", "at_targets"]


class LanguageModel:
    """-log p(next token) over the targets of a packed batch, each document by itself.

    Args:
        chunk: tokens whose logits exist at once; see `chunked_cross_entropy`.
        z_loss: see `chunked_cross_entropy`.
    """

    def __init__(self, chunk: int = 1024, z_loss: float = 0.0) -> None:
        self.chunk, self.z_loss = chunk, z_loss

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        """See `Objective`."""
        assert isinstance(model, Decoder)
        hidden = model.hidden_states(batch.ids, batch.positions, Packed(batch.documents))[0]  # (N, E)
        metrics = {} if model.training else {"accuracy": accuracy(model, *at_targets(hidden, batch), self.chunk)}
        extra, experts = balance(model)
        return Loss(self.total(model, hidden, batch), extra, metrics, experts)

    def total(self, model: Decoder, hidden: Tensor, batch: Batch) -> Tensor:
        """The sum over targets, from what came out of the last layer (N, E)."""
        places, labels = at_targets(hidden, batch)
        weight, vocabulary = output_matrix(model.lm_head)
        return chunked_cross_entropy(
            places,
            weight,
            labels,
            chunk=self.chunk,
            softcap=model.spec.logit_softcap,
            z_loss=self.z_loss,
            vocabulary=vocabulary,
        )


def at_targets(hidden: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """What came out at the places that have a target (n, E), and the targets (n,)."""
    labels = batch.labels[0]  # (N,)
    placed = labels.ne(IGNORE).nonzero()[:, 0]
    return hidden[placed], labels[placed]


def accuracy(model: Decoder | RecurrentModel, hidden: Tensor, labels: Tensor, chunk: int) -> Mean:
    """Which share of the targets (n,) are the likeliest token of (n, E); for where a model is measured, not trained."""
    pairs = zip(hidden.split(chunk), labels.split(chunk), strict=True)
    return Mean(sum(int((model.logits(h).argmax(dim=-1) == t).sum()) for h, t in pairs), len(labels))
