"""A mixture of experts: a router sends each token to a few feed-forwards out of many.

Legend: B batch, T tokens, N = B*T, E features of the model, X experts, k experts per token, I intermediate features.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio.parts.feed_forward import FeedForward, build_activation, gate_with
from intaglio.specs import FeedForwardSpec, MoESpec

__all__ = ["Experts", "MixtureOfExperts", "Router", "expert_shares", "grouped_linear", "load_balancing_loss"]


class Router(nn.Module):
    """See `RouterSpec`. Scores in fp32 at least."""

    def __init__(self, spec: MoESpec, hidden_size: int) -> None:
        super().__init__()
        self.spec, self.top_k = spec.router, spec.num_experts_per_tok
        self.weight = nn.Parameter(torch.randn(spec.num_experts, hidden_size) * 0.02)
        self.scores: Tensor | None = None  # of the last forward with gradients: (N, X) and the choice (N, k),
        self.chosen: Tensor | None = None  # which the load-balancing loss looks at
        self.bias: Tensor | None
        self.register_buffer("bias", torch.zeros(spec.num_experts) if spec.router.bias_correction else None)

    def forward(self, x: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(N, E) -> weights (N, k) in fp32 at least, chosen experts (N, k); `weight` (X, E) in the place of its own."""
        wide = torch.promote_types(x.dtype, torch.float32)
        logits = F.linear(x.to(wide), (self.weight if weight is None else weight).to(wide))  # (N, X)
        scores = logits.softmax(dim=-1) if self.spec.scoring == "softmax" else logits.sigmoid()
        chosen = self._preference(scores).topk(self.top_k, dim=-1).indices
        if torch.is_grad_enabled():
            self.scores, self.chosen = scores, chosen
        weights = scores.gather(-1, chosen)
        if self.spec.renormalise:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return weights * self.spec.scaling_factor, chosen

    def _preference(self, scores: Tensor) -> Tensor:
        """(N, X) -> (N, X): what the choice goes by; -inf outside the best groups."""
        preference = scores if self.bias is None else scores + self.bias.to(scores.dtype)
        if self.spec.num_groups == 1:
            return preference
        groups = preference.unflatten(-1, (self.spec.num_groups, -1))  # (N, groups, X/groups)
        best = groups.amax(dim=-1) if self.spec.group_score == "max" else groups.topk(2, dim=-1).values.sum(dim=-1)
        kept = best.topk(self.spec.top_groups, dim=-1).indices  # (N, top_groups)
        outside = torch.ones_like(best, dtype=torch.bool).scatter(-1, kept, False)
        return groups.masked_fill(outside[..., None], float("-inf")).flatten(-2)


class Experts(nn.Module):
    """X feed-forwards of one shape, their matrices stacked."""

    def __init__(self, spec: FeedForwardSpec, num_experts: int, hidden_size: int) -> None:
        super().__init__()
        size = spec.intermediate_size
        self.activation = build_activation(spec.activation)
        self.gate_proj = nn.Parameter(torch.randn(num_experts, size, hidden_size) * 0.02) if spec.gated else None
        self.up_proj = nn.Parameter(torch.randn(num_experts, size, hidden_size) * 0.02)
        self.down_proj = nn.Parameter(torch.randn(num_experts, hidden_size, size) * 0.02)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        """(rows, E) sorted by expert -> (rows, E); `ends` (X,) is where each expert's rows end."""
        return self.run(x, lambda name, x: self.product(name, x, ends))

    def product(self, name: str, x: Tensor, ends: Tensor) -> Tensor:
        """Each expert's rows times its matrix of this name: (rows, in) -> (rows, out)"""
        matrices = getattr(self, name)
        return matrices(x, ends) if isinstance(matrices, nn.Module) else grouped_linear(x, matrices, ends)

    def run(self, x: Tensor, product: Callable[[str, Tensor], Tensor]) -> Tensor:
        """The same with the products made by another."""
        inner = product("up_proj", x)
        if self.gate_proj is None:
            inner = self.activation(inner)
        else:
            inner = gate_with(self.activation, product("gate_proj", x), inner)
        return product("down_proj", inner)


class MixtureOfExperts(nn.Module):
    """See `MoESpec`."""

    def __init__(self, spec: MoESpec, hidden_size: int) -> None:
        super().__init__()
        self.load_balancing_coef = spec.load_balancing_coef
        self.router = Router(spec, hidden_size)
        self.experts = Experts(spec.expert, spec.num_experts, hidden_size)
        self.shared = FeedForward(spec.shared, hidden_size) if spec.shared else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, E) -> (B, T, E)"""
        tokens = x.flatten(0, -2)  # (N, E)
        out = self._routed(tokens).view_as(x)
        return out + self.shared(x) if self.shared else out

    def _routed(self, tokens: Tensor) -> Tensor:
        """Each token's experts, weighted and summed: rows sorted by expert, run in groups, put back."""
        weights, chosen = self.router(tokens)  # (N, k)
        expert, order = chosen.flatten().sort(stable=True)  # (N*k,)
        experts = torch.arange(self.router.weight.shape[0], device=tokens.device)
        ends = torch.searchsorted(expert, experts, right=True).to(torch.int32)  # (X,)
        out = self.experts(tokens[order // chosen.shape[-1]], ends)  # (N*k, E)
        out = out * weights.flatten()[order, None].to(out.dtype)
        return torch.empty_like(out).index_copy(0, order, out).view(*chosen.shape, -1).sum(dim=1)


def expert_shares(router: Router) -> Tensor:
    """(X,): the share of the last forward's choices that fell on each expert; they add up to 1."""
    assert router.chosen is not None, "no forward with gradients yet"
    counts = torch.bincount(router.chosen.flatten(), minlength=router.weight.shape[0])
    return counts / counts.sum()


def load_balancing_loss(router: Router) -> Tensor:
    """X * sum_i share_i * probability_i over the tokens of the last forward (Fedus et al. 2021, equations 4 to 6).

    1 where experts are used evenly, X where one gets everything. Sigmoid scores are divided by their sum first.
    """
    assert router.scores is not None, "no forward with gradients yet"
    probabilities = router.scores / router.scores.sum(dim=-1, keepdim=True)
    return router.scores.shape[-1] * (expert_shares(router) * probabilities.mean(dim=0)).sum()


def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Rows of x (rows, in) up to `ends[i]`, from `ends[i-1]`, times weight[i] (out, in) -> (rows, out)."""
    aligned = x.shape[1] % 8 == 0 and weight.shape[1] % 8 == 0  # the fused product wants rows of whole 16 bytes
    if x.dtype == torch.bfloat16 and aligned:  # and this is the one dtype it takes on every device
        return F.grouped_mm(x, weight.mT, offs=ends)
    parts = x.tensor_split(ends[:-1].cpu().long())
    return torch.cat([F.linear(part, matrix) for part, matrix in zip(parts, weight, strict=True)])
