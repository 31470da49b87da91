"""What trains where the weights are frozen: a new adapter, or one that is gone on with."""

from pathlib import Path
from typing import Any

import torch

from intaglio.adapters.attach import attach
from intaglio.adapters.peft_config import read_config
from intaglio.adapters.peft_files import CONFIG, config_of_adapter, load_adapter
from intaglio.adapters.targets import Places
from intaglio.models.decoder import Decoder
from intaglio.models.value import ActorCritic
from intaglio.specs import DecoderSpec
from intaglio.specs.adapter import LoRASpec
from intaglio.training.recipe import AdapterFrom, Recipe

__all__ = ["adapt", "adapter_of", "ranks_beside"]


def adapt(model: Any, recipe: Recipe) -> None:
    """Freezes the model and gives it the recipe's adapter to train; nothing where the recipe has none.

    A policy goes on with the recipe's adapter, and a critic of its own gets a new one like it.

    Raises:
        UserError: see `attach` and `load_adapter`.
    """
    if isinstance(model, ActorCritic):
        adapt(model.decoder, recipe)
        spec = adapter_of(recipe)
        if model.critic is not None and spec is not None:
            attach(model.critic, spec, seed=recipe.seed + 1)
        return
    match recipe.adapter:
        case AdapterFrom(path=path):
            load_adapter(model, Path(path), trainable=True)
        case LoRASpec() as spec:
            attach(model, spec, seed=recipe.seed)


def adapter_of(recipe: Recipe) -> LoRASpec | None:
    """What the recipe's adapter is.

    Raises:
        UserError: there is none where the recipe says that one is; see `config_of_adapter` and `read_config`.
    """
    if isinstance(recipe.adapter, AdapterFrom):
        path = Path(recipe.adapter.path)
        return read_config(config_of_adapter(path), str(path / CONFIG))[0]
    return recipe.adapter


def ranks_beside(spec: DecoderSpec, lora: LoRASpec | None) -> dict[str, int] | None:
    """The rank beside each matrix of a model by the path of its module, for `plan_training`; builds no weights."""
    if lora is None:
        return None
    with torch.device("meta"):
        places = Places(Decoder(spec)).targets(lora)
    return {path: lora.rank(*place.names) for place in places for path in place.ours}
