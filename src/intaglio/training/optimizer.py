"""AdamW, and Muon for matrices; no weight decay on norms, biases and embeddings."""

from collections.abc import Iterable
from typing import Literal

import torch
from pydantic import Field
from torch import nn

from intaglio.planning.parameters import decays, is_matrix
from intaglio.specs import Spec

__all__ = ["OptimizerSpec", "build_optimizers"]


class OptimizerSpec(Spec):
    """What steps the weights.

    Attributes:
        kind: adamw for everything; muon steps the matrices between the embeddings (Jordan 2024), adamw the rest.
        learning_rate: the peak.
        muon_learning_rate: of the matrices, where muon steps them.
        betas, eps, weight_decay: AdamW's (Loshchilov & Hutter 2019); the decay is Muon's too.
    """

    kind: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = Field(3e-4, gt=0)
    muon_learning_rate: float = Field(0.02, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.1, ge=0)


def build_optimizers(spec: OptimizerSpec, masters: dict[str, nn.Parameter]) -> list[torch.optim.Optimizer]:
    """One optimizer, or two with muon; each group knows its peak as `peak`, which the schedule scales."""
    decayed = {name: p for name, p in masters.items() if decays(name, p.shape)}
    rest = [p for name, p in masters.items() if name not in decayed]
    stepped = {name: p for name, p in decayed.items() if spec.kind == "muon" and is_matrix(name, p.shape)}
    optimizers: list[torch.optim.Optimizer] = []
    if stepped:
        muon = torch.optim.Muon(stepped.values(), lr=spec.muon_learning_rate, weight_decay=spec.weight_decay)
        optimizers.append(muon)
    optimizers.append(_adamw(spec, [p for name, p in decayed.items() if name not in stepped], rest))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return optimizers


def _adamw(spec: OptimizerSpec, decayed: Iterable[nn.Parameter], rest: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    groups = [
        {"params": list(decayed), "weight_decay": spec.weight_decay},
        {"params": list(rest), "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=spec.learning_rate, betas=spec.betas, eps=spec.eps, fused=True)
