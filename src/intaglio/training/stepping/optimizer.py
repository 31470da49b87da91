"""AdamW, and Muon for matrices; no weight decay on norms, biases and embeddings; a rate of its own for LoRA's B."""

from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import nn
from torch.optim import AdamW

from intaglio.planning.parameters import decays, is_matrix
from intaglio.specs import Spec
from intaglio.training.stepping.paged import PagedAdamW

__all__ = ["OptimizerSpec", "build_optimizers"]


class OptimizerSpec(Spec):
    """What steps the weights.

    Attributes:
        kind: adamw for everything; paged_adamw with its moments out of the way (see `paged`); muon steps the matrices
            between the embeddings (Jordan 2024), adamw the rest.
        learning_rate: the peak.
        muon_learning_rate: of the matrices, where muon steps them.
        betas, eps, weight_decay: AdamW's (Loshchilov & Hutter 2019); the decay is Muon's too.
        loraplus_lr_ratio: the learning rate of an adapter's B matrices in relation to that of everything else (LoRA+,
            Hayou et al. 2024, arXiv 2402.12354, who advise 16); 1 steps all alike.
    """

    kind: Literal["adamw", "paged_adamw", "muon"] = "adamw"
    learning_rate: float = Field(3e-4, gt=0)
    muon_learning_rate: float = Field(0.02, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.1, ge=0)
    loraplus_lr_ratio: float = Field(1.0, gt=0)

    @model_validator(mode="after")
    def _of_adamw(self) -> "OptimizerSpec":
        if self.kind == "muon" and self.loraplus_lr_ratio != 1:
            raise ValueError("loraplus_lr_ratio means nothing to muon, whose steps are all of one size")
        return self


def build_optimizers(spec: OptimizerSpec, masters: dict[str, nn.Parameter]) -> list[torch.optim.Optimizer]:
    """One optimizer, or two with muon; each group knows its peak as `peak`, which the schedule scales."""
    stepped = {name: p for name, p in masters.items() if spec.kind == "muon" and is_matrix(name, p.shape)}
    optimizers: list[torch.optim.Optimizer] = []
    if stepped:
        muon = torch.optim.Muon(stepped.values(), lr=spec.muon_learning_rate, weight_decay=spec.weight_decay)
        optimizers.append(muon)
    optimizers.append(_adamw(spec, {name: p for name, p in masters.items() if name not in stepped}))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return optimizers


def _adamw(spec: OptimizerSpec, masters: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    """A group for each rate and decay that occurs; the first is the plain one, whose rate is told."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in masters.items():
        ratio = spec.loraplus_lr_ratio if "lora_B" in name.split(".") else 1.0
        decay = spec.weight_decay if decays(name, parameter.shape) else 0.0
        groups.setdefault((ratio, decay), []).append(parameter)
    ordered = [
        {"params": groups[ratio, decay], "lr": spec.learning_rate * ratio, "weight_decay": decay}
        for ratio, decay in sorted(groups, key=lambda key: (key[0] != 1, -key[1]))
    ]
    settings: dict[str, Any] = {"lr": spec.learning_rate, "betas": spec.betas, "eps": spec.eps}
    return PagedAdamW(ordered, **settings) if spec.kind == "paged_adamw" else AdamW(ordered, **settings, fused=True)
