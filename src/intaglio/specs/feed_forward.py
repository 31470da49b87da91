"""Feed-forward layers: dense or a mixture of experts. Arithmetic only.

FLOPs count a multiply-add as two, as `torch.utils.flop_counter` does.
"""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from intaglio.specs.base import Spec, kind_or

__all__ = ["ActivationSpec", "FeedForwardLayerSpec", "FeedForwardSpec", "MoESpec", "RouterSpec", "SwishSpec"]

ActivationName = Literal["relu", "relu2", "gelu", "gelu_tanh", "silu", "sigmoid"]


class SwishSpec(Spec):
    """x * sigmoid(beta * x) (Ramachandran et al. 2017, arXiv 1710.05941); beta 1 is SiLU.

    Attributes:
        learned: beta is a parameter that starts at `beta`.
    """

    kind: Literal["swish"] = "swish"
    beta: float = 1.0
    learned: bool = False


ActivationSpec = ActivationName | SwishSpec


class FeedForwardSpec(Spec):
    """down(act(up(x))), or gated: down(act(gate(x)) * up(x)) (Shazeer 2020, arXiv 2002.05202).

    Gated with `sigmoid` is GLU, with `gelu` GEGLU, with `silu` SwiGLU.
    """

    kind: Literal["feed_forward"] = "feed_forward"
    intermediate_size: int = Field(gt=0)
    activation: ActivationSpec = "gelu"
    gated: bool = False
    bias: bool = False

    def num_parameters(self, hidden_size: int) -> int:
        """Weights and biases, and beta where it is learned."""
        bias = self.bias * ((1 + self.gated) * self.intermediate_size + hidden_size)
        beta = isinstance(self.activation, SwishSpec) and self.activation.learned
        return self.matmul_weights(hidden_size) + bias + beta

    def num_active_parameters(self, hidden_size: int) -> int:
        """All of them: every token passes through every weight."""
        return self.num_parameters(hidden_size)

    def matmul_weights(self, hidden_size: int) -> int:
        """Weights that multiply every token."""
        return (2 + self.gated) * hidden_size * self.intermediate_size


class RouterSpec(Spec):
    """How a token chooses its experts.

    Attributes:
        scoring: `softmax` over all experts, or an independent `sigmoid` for each (DeepSeek-V3).
        renormalise: the weights of the chosen experts are divided by their sum.
        scaling_factor: multiplies the weights after that.
        num_groups, top_groups: experts stand in groups; only those of the best `top_groups` can be chosen.
        group_score: a group is worth its best expert's score (`max`, V2) or its two best's sum (`top2`, V3).
        bias_correction: a bias per expert is added for choosing, not for weighting (auxiliary-loss-free balance).
    """

    scoring: Literal["softmax", "sigmoid"] = "softmax"
    renormalise: bool = True
    scaling_factor: float = 1.0
    num_groups: int = Field(1, gt=0)
    top_groups: int = Field(1, gt=0)
    group_score: Literal["max", "top2"] = "max"
    bias_correction: bool = False

    @model_validator(mode="after")
    def _groups(self) -> "RouterSpec":
        if self.top_groups > self.num_groups:
            raise ValueError(f"top_groups {self.top_groups} is more than num_groups {self.num_groups}")
        return self


class MoESpec(Spec):
    """A mixture of experts: each token runs through the `num_experts_per_tok` that the router chose for it.

    Attributes:
        expert: what one expert is.
        shared: a feed-forward that every token passes through as well.
        load_balancing_coef: weight of the auxiliary loss that keeps experts evenly used (Fedus et al. 2021, eq. 4).
    """

    kind: Literal["moe"] = "moe"
    num_experts: int = Field(gt=0)
    num_experts_per_tok: int = Field(gt=0)
    expert: FeedForwardSpec
    shared: FeedForwardSpec | None = None
    router: RouterSpec = RouterSpec()
    load_balancing_coef: float = Field(0.0, ge=0)

    @model_validator(mode="after")
    def _counts(self) -> "MoESpec":
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(
                f"num_experts_per_tok {self.num_experts_per_tok} is more than num_experts {self.num_experts}"
            )
        if self.num_experts % self.router.num_groups:
            raise ValueError(f"num_experts {self.num_experts} is not a multiple of num_groups {self.router.num_groups}")
        self._check_groups(self.num_experts // self.router.num_groups)
        if self.expert.bias or isinstance(self.expert.activation, SwishSpec):
            raise ValueError("experts have no biases and no swish with beta")
        return self

    def _check_groups(self, size: int) -> None:
        router = self.router
        if self.num_experts_per_tok > size * router.top_groups:
            raise ValueError(
                f"num_experts_per_tok {self.num_experts_per_tok} is more than top_groups {router.top_groups} hold"
            )
        if router.group_score == "top2" and router.num_groups > 1 and size < 2:
            raise ValueError(f"group_score top2 needs two experts a group; num_groups {router.num_groups} leaves one")

    def num_parameters(self, hidden_size: int) -> int:
        """All experts, the shared one and the router (its correction bias is a buffer, not a parameter)."""
        return self._parameters(hidden_size, self.num_experts)

    def num_active_parameters(self, hidden_size: int) -> int:
        """The parameters one token meets."""
        return self._parameters(hidden_size, self.num_experts_per_tok)

    def _parameters(self, hidden_size: int, experts: int) -> int:
        shared = self.shared.num_parameters(hidden_size) if self.shared else 0
        return experts * self.expert.num_parameters(hidden_size) + shared + hidden_size * self.num_experts

    def matmul_weights(self, hidden_size: int) -> int:
        """Weights that multiply one token: its experts, the shared one and the router."""
        shared = self.shared.matmul_weights(hidden_size) if self.shared else 0
        experts = self.num_experts_per_tok * self.expert.matmul_weights(hidden_size)
        return experts + shared + hidden_size * self.num_experts


FeedForwardLayerSpec = Annotated[
    Annotated[FeedForwardSpec, Tag("feed_forward")] | Annotated[MoESpec, Tag("moe")],
    Discriminator(kind_or("feed_forward")),
]
