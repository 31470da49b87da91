"""Positions: added at the input (sinusoidal, learned) or turned into each score (rotary)."""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from intaglio.specs.base import Spec

__all__ = [
    "DynamicScaling",
    "LearnedPositionsSpec",
    "LinearScaling",
    "Llama3Scaling",
    "PositionsSpec",
    "RotaryScaling",
    "RotarySpec",
    "SinusoidalPositionsSpec",
    "YarnScaling",
]


class LearnedPositionsSpec(Spec):
    """One learned vector per position, added to the embedding (GPT-1); ends at `max_position_embeddings`."""

    kind: Literal["learned"] = "learned"


class SinusoidalPositionsSpec(Spec):
    """PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i+1) = cos(same) (Vaswani et al. 2017, section 3.5).

    Attributes:
        layout: `interleaved` sin and cos in turn (the paper), or `halves`: all sines, then all cosines (Marian).
    """

    kind: Literal["sinusoidal"] = "sinusoidal"
    layout: Literal["interleaved", "halves"] = "interleaved"


PositionsSpec = Annotated[LearnedPositionsSpec | SinusoidalPositionsSpec, Field(discriminator="kind")]


class LinearScaling(Spec):
    """Position interpolation: every frequency divided by `factor` (Chen et al. 2023, arXiv 2306.15595)."""

    kind: Literal["linear"] = "linear"
    factor: float = Field(gt=0)


class DynamicScaling(Spec):
    """NTK-aware scaling whose base grows with the length of the sequence beyond the trained one.

    base' = base * (factor * L / trained - (factor - 1))^(d / (d - 2)) for L > trained, else base. All tokens of one
    sequence share one base: L is the length the sequence was planned for (see `parts.context`).
    """

    kind: Literal["dynamic"] = "dynamic"
    factor: float = Field(gt=0)
    original_max_position_embeddings: int = Field(gt=0)


class YarnScaling(Spec):
    """YaRN: low frequencies interpolated, high ones kept, scores re-tempered (Peng et al. 2023, arXiv 2309.00071).

    Attributes:
        beta_fast, beta_slow: rotations over the trained length between which the ramp lies (section 3.2).
        attention_factor: multiplies cos and sin; None computes it from `factor`, `mscale` and `mscale_all_dim`.
        mscale, mscale_all_dim: DeepSeek's split of that factor; `mscale_all_dim` moves it into the score scale.
        truncate: round the ends of the ramp to whole dimensions.
    """

    kind: Literal["yarn"] = "yarn"
    factor: float = Field(gt=0)
    original_max_position_embeddings: int = Field(gt=0)
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def temperature(self, mscale: float = 1.0) -> float:
        """0.1 * mscale * ln(factor) + 1 (equation 22, the square root of 1/t)."""
        return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    @property
    def rotary_factor(self) -> float:
        """What cos and sin are multiplied by."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self.temperature(self.mscale) / self.temperature(self.mscale_all_dim)
        return self.temperature()


class Llama3Scaling(Spec):
    """Llama 3.1's scaling by wavelength: long waves divided by `factor`, short ones kept, a ramp between."""

    kind: Literal["llama3"] = "llama3"
    factor: float = Field(gt=0)
    low_freq_factor: float = Field(gt=0)
    high_freq_factor: float = Field(gt=0)
    original_max_position_embeddings: int = Field(gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> "Llama3Scaling":
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError("low_freq_factor must be below high_freq_factor")
        return self


RotaryScaling = Annotated[LinearScaling | DynamicScaling | YarnScaling | Llama3Scaling, Field(discriminator="kind")]


class RotarySpec(Spec):
    """Rotary positions: pairs of features turned by position * theta^(-2i/dim) (Su et al. 2021, arXiv 2104.09864).

    Our layout is Hugging Face's: feature i is paired with i + dim/2 (half split). Files that hold interleaved pairs
    are permuted when they are read, never at run time.

    Attributes:
        dim: how many features of each head are turned; None turns the whole head (GPT-NeoX turns a quarter).
    """

    theta: float = Field(10000.0, gt=0)
    dim: int | None = Field(None, gt=0, multiple_of=2)
    scaling: RotaryScaling | None = None
