"""Rotary positions in a `config.json`: the older `rope_theta` + `rope_scaling`, and the newer `rope_parameters`."""

import math
from typing import Any

from intaglio.errors import UserError
from intaglio.specs.families.config import Config
from intaglio.specs.position import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    RotaryScaling,
    RotarySpec,
    YarnScaling,
)

__all__ = ["read_rope", "rope_of", "write_rope"]

_YARN_OPTIONAL = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate")


def read_rope(
    config: Config, head_dim: int, theta: float = 10000.0, partial: float = 1.0, theta_key: str = "rope_theta"
) -> RotarySpec:
    """The one rotary spec of a model whose layers all use the same.

    Args:
        config: the config being read.
        head_dim: width of a head.
        theta: the family's base, when the file gives none.
        partial: the share of the head that is turned, when the file gives none.
        theta_key: the family's older name of the base.
    """
    older = {"rope_theta": config.number(theta_key, theta), **config.mapping("rope_scaling")}
    older["partial_rotary_factor"] = config.number("partial_rotary_factor", partial)
    return rope_of({**older, **config.mapping("rope_parameters")}, config, head_dim)


def rope_of(parameters: dict[str, Any], config: Config, head_dim: int) -> RotarySpec:
    """The rotary spec of one dictionary of parameters.

    Raises:
        UserError: a rope type or a parameter we do not know; names it.
    """
    rest = {key: value for key, value in parameters.items() if value is not None}
    _only_numbers(rest, config)
    kind = rest.pop("rope_type", rest.pop("type", "default"))
    rest.pop("type", None)
    theta = float(rest.pop("rope_theta"))
    turned = int(head_dim * rest.pop("partial_rotary_factor", 1.0))
    scaling = _scaling(kind, rest, config)
    return RotarySpec(theta=theta, dim=None if turned == head_dim else turned, scaling=scaling)


def _only_numbers(rest: dict[str, Any], config: Config) -> None:
    for key, value in rest.items():
        if key not in ("rope_type", "type") and not (isinstance(value, int | float) and math.isfinite(value)):
            raise UserError(f"rope parameter {key!r} must be a number, not {value!r}", where=config.where)


def _scaling(kind: str, rest: dict[str, Any], config: Config) -> RotaryScaling | None:
    length = config.integer("max_position_embeddings")
    if kind == "dynamic":  # its trained length is the model's, whatever else the file says
        return DynamicScaling(factor=_factor(rest, config), original_max_position_embeddings=length)
    if kind == "linear":
        return LinearScaling(factor=_factor(rest, config))
    trained = rest.pop("original_max_position_embeddings", length)
    if kind == "yarn":
        options = {key: rest.pop(key) for key in _YARN_OPTIONAL if key in rest}
        factor = _factor(rest, config)
        return YarnScaling(factor=factor, original_max_position_embeddings=trained, **options)
    if kind == "llama3":
        low, high = rest.pop("low_freq_factor", None), rest.pop("high_freq_factor", None)
        return Llama3Scaling(
            factor=_factor(rest, config),
            low_freq_factor=low,
            high_freq_factor=high,
            original_max_position_embeddings=trained,
        )
    if kind != "default":
        mend = "supported: default, linear, dynamic, yarn, llama3"
        raise UserError(f"unsupported value rope_type = {kind!r}", where=config.where, mend=mend)
    _nothing_left(rest, config)
    return None


def _factor(rest: dict[str, Any], config: Config) -> float:
    factor = rest.pop("factor", None)
    if factor is None:
        raise UserError("missing key 'factor' of the rope scaling", where=config.where)
    _nothing_left(rest, config)
    return float(factor)


def _nothing_left(rest: dict[str, Any], config: Config) -> None:
    if set(rest) - {"original_max_position_embeddings"}:
        raise UserError(f"unknown rope parameter {min(rest)!r}", where=config.where)


def write_rope(rope: RotarySpec, head_dim: int) -> dict[str, Any]:
    """The older keys, which every version of transformers and of other tools reads."""
    keys: dict[str, Any] = {"rope_theta": rope.theta}
    if rope.scaling:
        data = rope.scaling.plain()
        keys["rope_scaling"] = {"rope_type": data.pop("kind"), **data}
        if isinstance(rope.scaling, DynamicScaling):
            del keys["rope_scaling"]["original_max_position_embeddings"]
    if rope.dim and rope.dim != head_dim:
        keys["partial_rotary_factor"] = rope.dim / head_dim
    return keys
