"""What an adapter is: which matrices get a low-rank update, of which rank and scale, and what else trains. No torch.

The names are PEFT's, and those of modules are what the model's family calls them at Hugging Face; so an
`adapter_config.json` says the same to both.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, TypeVar

from pydantic import Field, field_validator, model_validator

from intaglio.specs.base import Spec

__all__ = ["LoRASpec", "named"]

_Number = TypeVar("_Number", int, float)


class LoRASpec(Spec):
    """LoRA (Hu et al. 2021): y = W x + s B A x, W frozen, A (r, in) and B (out, r) trained, s = alpha / r.

    A name in `target_modules`, `exclude_modules` and `modules_to_save` is a module's own (`q_proj`), the end of its
    path (`self_attn.q_proj`), or a regular expression for the whole path.

    Attributes:
        r: the rank.
        lora_alpha: s = lora_alpha / r.
        lora_dropout: of what goes into A, in training.
        target_modules: `all-linear` is every matrix of the layers, experts included, but neither router nor output.
        exclude_modules: taken out of the targets.
        rank_pattern: other ranks by name or regular expression; the first that fits the end of a path counts.
        alpha_pattern: the same for `lora_alpha`.
        use_rslora: s = lora_alpha / sqrt(r) (Kalajdzievski 2023).
        use_dora: rows of W + s B A get a trained length (Liu et al. 2024).
        lora_bias: B has a bias, which s multiplies too.
        init_lora_weights: `default` and `gaussian` start with B = 0. `pissa` (Meng et al. 2024) starts with the
            largest singular vectors of W, `olora` (Buyukakyuz 2024) with its QR decomposition; what that adds at the
            start is taken off again, so that the model is the same, and the base is left as it is.
        bias: which biases of the base train: none, all, or those of the targets (`lora_only`).
        modules_to_save: trained whole, as copies.
        trainable_token_indices: rows of the embeddings, and of the output matrix, that train.
        ensure_weight_tying: where the output matrix is the embedding matrix, what trains one trains the other. PEFT
            leaves the output matrix as it was by default; then the two are no longer tied.
    """

    r: int = Field(16, gt=0)
    lora_alpha: float = Field(32, gt=0)
    lora_dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    exclude_modules: tuple[str, ...] = ()
    rank_pattern: dict[str, int] = Field({})
    alpha_pattern: dict[str, float] = Field({})
    use_rslora: bool = False
    use_dora: bool = False
    lora_bias: bool = False
    init_lora_weights: Literal["default", "gaussian", "pissa", "olora"] = "default"
    bias: Literal["none", "all", "lora_only"] = "none"
    modules_to_save: tuple[str, ...] = ()
    trainable_token_indices: tuple[int, ...] = ()
    ensure_weight_tying: bool = True

    @field_validator("rank_pattern", "alpha_pattern")
    @classmethod
    def _positive(cls, pattern: dict[str, float]) -> dict[str, float]:
        if any(value <= 0 for value in pattern.values()):
            raise ValueError("every value must be positive")
        return pattern

    @field_validator("trainable_token_indices")
    @classmethod
    def _token_ids(cls, indices: tuple[int, ...]) -> tuple[int, ...]:
        if any(index < 0 for index in indices):
            raise ValueError("a token id is not negative")
        return tuple(sorted(set(indices)))

    @model_validator(mode="after")
    def _bias_without_lengths(self) -> "LoRASpec":
        if self.use_dora and self.lora_bias:
            raise ValueError("use_dora and lora_bias exclude each other: a trained length is of a row of weights")
        return self

    @model_validator(mode="after")
    def _regular_expressions(self) -> "LoRASpec":
        targets = () if self.target_modules == "all-linear" else self.target_modules
        for name in (*targets, *self.exclude_modules, *self.modules_to_save, *self.rank_pattern, *self.alpha_pattern):
            try:
                re.compile(name)
            except re.error as error:
                raise ValueError(f"{name!r} is no regular expression: {error}") from error
        return self

    def rank(self, *names: str) -> int:
        """r of the module that has these paths."""
        return _by_pattern(self.rank_pattern, names, self.r)

    def scale(self, *names: str) -> float:
        """s of the module that has these paths."""
        rank = self.rank(*names)
        return _by_pattern(self.alpha_pattern, names, self.lora_alpha) / (math.sqrt(rank) if self.use_rslora else rank)


def named(module: str, names: Iterable[str]) -> bool:
    """Whether a path is meant by one of `names`: it is the name, ends in it, or matches it as a regular expression."""
    return any(module == n or module.endswith(f".{n}") or re.fullmatch(n, module) for n in names)


def _by_pattern(pattern: Mapping[str, _Number], names: Collection[str], otherwise: _Number) -> _Number:
    """The value of the first key that fits the end of a path, as PEFT finds it."""
    fitting = (v for key, v in pattern.items() if any(re.match(rf"(.*\.)?({key})$", name) for name in names))
    return next(fitting, otherwise)
