"""Normalisation: LayerNorm, and RMSNorm, which took the mean away."""

from typing import Annotated, Literal

from pydantic import Field

from intaglio.specs.base import Spec

__all__ = ["LayerNormSpec", "NormSpec", "RMSNormSpec"]


class LayerNormSpec(Spec):
    """y = (x - mean) / sqrt(var + eps) * weight + bias (Ba et al. 2016, arXiv 1607.06450)."""

    kind: Literal["layer_norm"] = "layer_norm"
    eps: float = Field(1e-5, gt=0)
    bias: bool = True

    def num_parameters(self, size: int) -> int:
        """Weights for `size` features."""
        return size * (1 + self.bias)


class RMSNormSpec(Spec):
    """y = x / sqrt(mean(x^2) + eps) * weight (Zhang & Sennrich 2019, arXiv 1910.07467).

    Attributes:
        unit_offset: the scale is 1 + weight, so that weights of zero do nothing (Gemma).
    """

    kind: Literal["rms_norm"] = "rms_norm"
    eps: float = Field(1e-6, gt=0)
    unit_offset: bool = False

    def num_parameters(self, size: int) -> int:
        """Weights for `size` features."""
        return size


NormSpec = Annotated[LayerNormSpec | RMSNormSpec, Field(discriminator="kind")]
