"""Next-token cross-entropy: pretraining where every token is a target, fine-tuning where the mask says which are.

Legend: N tokens of the batch, n of them with a target, E features.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from intaglio.models.decoder import Decoder
from intaglio.parts.context import Packed
from intaglio.parts.moe import MixtureOfExperts, load_balancing_loss
from intaglio.training.batches import Batch
from intaglio.training.objectives.chunked_loss import chunked_cross_entropy
from intaglio.training.objectives.objective import Loss

__all__ = ["LanguageModel", "balance"]


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
        metrics = {} if model.training else {"correct": self._correct(model, hidden, batch)}
        return Loss(self.total(model, hidden, batch), balance(model), metrics)

    def total(self, model: Decoder, hidden: Tensor, batch: Batch) -> Tensor:
        """The sum over targets, from what came out of the last layer (N, E)."""
        placed, labels = _targets(batch)
        return chunked_cross_entropy(
            hidden[placed],
            model.lm_head.weight,
            labels,
            chunk=self.chunk,
            softcap=model.spec.logit_softcap,
            z_loss=self.z_loss,
        )

    def _correct(self, model: Decoder, hidden: Tensor, batch: Batch) -> float:
        """How many targets are the likeliest token; counted where a model is measured, not where it learns."""
        placed, labels = _targets(batch)
        pairs = zip(hidden[placed].split(self.chunk), labels.split(self.chunk), strict=True)
        return float(sum(int((model.logits(h).argmax(dim=-1) == t).sum()) for h, t in pairs))


def _targets(batch: Batch) -> tuple[Tensor, Tensor]:
    """The places that have a target, and the targets: (n,) each."""
    labels = batch.labels[0]  # (N,)
    placed = labels.ne(-100).nonzero()[:, 0]
    return placed, labels[placed]


def balance(model: Decoder) -> Tensor | None:
    """The weighted load-balancing losses of all mixtures (Fedus et al. 2021, equation 4, layer by layer)."""
    losses = [
        layer.load_balancing_coef * load_balancing_loss(layer.router)
        for layer in _mixtures(model)
        if layer.load_balancing_coef
    ]
    return torch.stack(losses).mean() if losses else None


def _mixtures(model: Decoder) -> Iterator[MixtureOfExperts]:
    return (module for module in model.modules() if isinstance(module, MixtureOfExperts))
