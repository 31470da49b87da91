"""`adapter_config.json`, as PEFT has it: to a spec and back."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from intaglio.adapters.targets import HEAD, Places
from intaglio.errors import UserError
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.base import validate

__all__ = ["Rank", "read_config", "write_config"]

_SAME = (
    "r",
    "lora_alpha",
    "lora_dropout",
    "rank_pattern",
    "alpha_pattern",
    "use_rslora",
    "use_dora",
    "lora_bias",
    "bias",
)
_WITHOUT_EFFECT = {
    "alora_invocation_tokens",
    "auto_mapping",
    "base_model_name_or_path",
    "fan_in_fan_out",  # how they keep W; A and B are the same
    "inference_mode",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
}
_READ = {
    *_SAME,
    "ensure_weight_tying",
    "exclude_modules",
    "init_lora_weights",
    "modules_to_save",
    "target_modules",
    "target_parameters",
    "trainable_token_indices",
}
_BASE_UNCHANGED = (True, False, None, "gaussian", "eva", "orthogonal", "mica")
"""Starts that leave W as it is: where A and B came from no longer matters."""

_HEADS = ("classifier", HEAD)
_TASKS = {"decoder": "CAUSAL_LM", "encoder_decoder": "SEQ_2_SEQ_LM"}


@dataclass(frozen=True)
class Rank:
    """What a module of theirs got: its path, whether it is a parameter there, its rank and its scale."""

    theirs: str
    parameter: bool
    r: int
    scale: float


def read_config(config: Mapping[str, Any], where: str) -> tuple[LoRASpec, bool]:
    """The spec that a config says, and whether an output matrix of its own has trained rows.

    Raises:
        UserError: not LoRA, or a setting that we do not know; names it.
    """
    if config.get("peft_type") != "LORA":
        raise UserError(f"peft_type {config.get('peft_type')!r} is not LORA", where=where)
    for key in sorted(config.keys() - _READ - _WITHOUT_EFFECT):
        if config[key]:
            raise UserError(f"{key}: {config[key]!r} is not supported", where=where)
    indices, output_rows = _token_rows(config.get("trainable_token_indices"), where)
    saved = config.get("modules_to_save") or ()
    fields = {
        **{key: config[key] for key in _SAME if config.get(key) is not None},
        "target_modules": _targets(config),
        "exclude_modules": _names(config.get("exclude_modules")),
        "init_lora_weights": _start(config.get("init_lora_weights", True), where),
        "modules_to_save": tuple(name for name in saved if name not in _HEADS),
        "trainable_token_indices": indices,
        "ensure_weight_tying": bool(config.get("ensure_weight_tying")),
    }
    spec: LoRASpec = validate(LoRASpec, {"r": 8, "lora_alpha": 8, **fields}, where)
    return spec, output_rows


def _targets(config: Mapping[str, Any]) -> str | tuple[str, ...]:
    if config.get("target_modules") == "all-linear":
        return "all-linear"
    return _names(config.get("target_modules")) + _names(config.get("target_parameters"))


def _names(value: Any) -> tuple[str, ...]:
    """Names, or one regular expression."""
    return (value,) if isinstance(value, str) else tuple(sorted(value or ()))


def _start(how: Any, where: str) -> str:
    if how in ("pissa", "olora"):
        return str(how)
    if how in _BASE_UNCHANGED:
        return "default"
    mend = "let PEFT convert it: save_pretrained(..., path_initial_model_for_weight_conversion=...)"
    raise UserError(
        f"init_lora_weights: {how!r} changed the base in a way that is not in the file", where=where, mend=mend
    )


def _token_rows(value: Any, where: str) -> tuple[tuple[int, ...], bool]:
    if not isinstance(value, dict):
        return tuple(value or ()), False
    lists = [sorted(indices) for indices in value.values()]
    if any(one != lists[0] for one in lists):
        raise UserError(
            "other rows of the embeddings than of the output matrix", where=f"{where}: trainable_token_indices"
        )
    return tuple(lists[0] if lists else ()), len(lists) > 1


def write_config(model: Any, spec: LoRASpec, places: Places, ranks: Sequence[Rank], base: str | None) -> dict[str, Any]:
    """The config that says which rank each module of theirs got, none of which PEFT finds out by itself."""
    paths = [place.module for place in places.all if place.kind != "experts"]
    adapted = [rank.theirs for rank in ranks]
    alphas = {rank: _whole(rank.scale * (math.sqrt(rank.r) if spec.use_rslora else rank.r)) for rank in ranks}
    usual_r, usual_alpha = _most([rank.r for rank in ranks], spec.r), _most(alphas.values(), spec.lora_alpha)
    classifies = any(place.ours == (HEAD,) for place in places.all)
    parameters = [rank.theirs for rank in ranks if rank.parameter]
    return {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS" if classifies else _TASKS.get(model.spec.kind),
        "base_model_name_or_path": base,
        "inference_mode": True,
        "init_lora_weights": True,
        **{key: getattr(spec, key) for key in ("lora_dropout", "use_rslora", "use_dora", "lora_bias", "bias")},
        "r": usual_r,
        "lora_alpha": usual_alpha,
        "rank_pattern": _short({rank.theirs: rank.r for rank in ranks if rank.r != usual_r}, adapted),
        "alpha_pattern": _short(
            {rank.theirs: alpha for rank, alpha in alphas.items() if alpha != usual_alpha}, adapted
        ),
        "target_modules": sorted(_short({rank.theirs: True for rank in ranks if not rank.parameter}, paths)),
        "target_parameters": sorted(_short(dict.fromkeys(parameters, True), parameters)) or None,
        "modules_to_save": [place.module for place in places.saved(spec)] or None,  # PEFT takes any ending of a path
        "trainable_token_indices": _rows(spec, places),
        "ensure_weight_tying": bool(places.ties) and spec.ensure_weight_tying,
        "fan_in_fan_out": any(place.transposed for place in places.targets(spec)),
    }


def _most(values: Iterable[Any], otherwise: Any) -> Any:
    """The commonest."""
    counted = Counter(values).most_common(1)
    return counted[0][0] if counted else otherwise


def _whole(number: float) -> float:
    """Without a fraction where it has none, and without what a float adds."""
    return round(number) if abs(number - round(number)) < 1e-9 else number


def _short(values: Mapping[str, Any], paths: Collection[str]) -> dict[str, Any]:
    """Values by path, by the path's last word where that says the same for all of `paths` that end in it."""
    short = {}
    for path, value in values.items():
        word = path.rpartition(".")[2]
        alike = all(values.get(other) == value for other in paths if other.rpartition(".")[2] == word)
        short[word if alike and word != "weight" else path] = value
    return short


def _rows(spec: LoRASpec, places: Places) -> dict[str, list[int]] | None:
    indices = list(spec.trainable_token_indices)
    return {place.module: indices for place in places.tables()} if indices else None
