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

__all__ = ["LanguageModel"]


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
        labels = batch.labels[0]  # (N,)
        placed = labels.ne(-100).nonzero()[:, 0]  # (n,)
        total = chunked_cross_entropy(
            hidden[placed],
            model.lm_head.weight,
            labels[placed],
            chunk=self.chunk,
            softcap=model.spec.logit_softcap,
            z_loss=self.z_loss,
        )
        metrics = {} if model.training else {"correct": self._correct(model, hidden[placed], labels[placed])}
        return Loss(total, _balance(model), metrics)

    def _correct(self, model: Decoder, hidden: Tensor, labels: Tensor) -> float:
        """How many targets are the likeliest token; counted where a model is measured, not where it learns."""
        pairs = zip(hidden.split(self.chunk), labels.split(self.chunk), strict=True)
        return float(sum(int((model.logits(h).argmax(dim=-1) == t).sum()) for h, t in pairs))


def _balance(model: Decoder) -> Tensor | None:
    """The weighted load-balancing losses of all mixtures (Fedus et al. 2021, equation 4, layer by layer)."""
    losses = [
        layer.load_balancing_coef * load_balancing_loss(layer.router)
        for layer in _mixtures(model)
        if layer.load_balancing_coef
    ]
    return torch.stack(losses).mean() if losses else None


def _mixtures(model: Decoder) -> Iterator[MixtureOfExperts]:
    return (module for module in model.modules() if isinstance(module, MixtureOfExperts))
