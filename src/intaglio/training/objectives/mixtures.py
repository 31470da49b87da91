"""What mixtures of experts add to a loss, and what is told of them: are the experts used evenly?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from intaglio.models.decoder import Decoder
from intaglio.parts.moe import MixtureOfExperts, expert_shares, load_balancing_loss

__all__ = ["ExpertUse", "balance", "joined_use"]


@dataclass(frozen=True)
class ExpertUse:
    """How one layer used its experts.

    Attributes:
        balance: its load-balancing loss before it is weighted: 1 where experts are used evenly.
        shares: of the choices, for each expert; they add up to 1.
    """

    balance: float
    shares: tuple[float, ...]


def balance(model: Decoder) -> tuple[Tensor | None, list[ExpertUse]]:
    """The weighted load-balancing losses of all mixtures (Fedus et al. 2021, equation 4), their mean over layers, and
    how each mixture used its experts in the last forward, layer by layer.

    No loss without mixtures that want it; neither where no gradient is wanted: routers remember for the backward alone.
    """
    if not torch.is_grad_enabled():
        return None, []
    layers = list(_mixtures(model))
    losses = [load_balancing_loss(layer.router) for layer in layers]
    pairs = list(zip(layers, losses, strict=True))
    wanted = [layer.load_balancing_coef * loss for layer, loss in pairs if layer.load_balancing_coef]
    use = [ExpertUse(loss.item(), tuple(expert_shares(layer.router).tolist())) for layer, loss in pairs]
    return torch.stack(wanted).mean() if wanted else None, use


def joined_use(
    parts: Sequence[Sequence[ExpertUse]], targets: Sequence[float], tokens: Sequence[int]
) -> tuple[ExpertUse, ...]:
    """The layers' use over several micro-batches: balance weighted by targets as the loss is, shares by tokens."""
    layers = zip(*parts, strict=True)
    return tuple(
        ExpertUse(
            _mean([part.balance for part in layer], targets),
            tuple(_mean(shares, tokens) for shares in zip(*(part.shares for part in layer), strict=True)),
        )
        for layer in layers
    )


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / (sum(weights) or 1)


def _mixtures(model: Decoder) -> Iterator[MixtureOfExperts]:
    return (module for module in model.modules() if isinstance(module, MixtureOfExperts))
