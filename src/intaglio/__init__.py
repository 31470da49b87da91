"""Intaglio: the history of language models as running code, and the whole life of any model in it.

The names below are loaded when they are first used, so that `import intaglio` itself is light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intaglio.adapters.models import load_model
    from intaglio.checkpoints.models import load_tokenizer
    from intaglio.checkpoints.pull import pull
    from intaglio.checkpoints.save import save_model
    from intaglio.engine.llm import LLM
    from intaglio.engine.sampling_params import SamplingParams
    from intaglio.errors import UserError
    from intaglio.lineage.presets import preset
    from intaglio.models.decoder import Decoder
    from intaglio.planning import plan, plan_training
    from intaglio.specs import DecoderSpec
    from intaglio.training.recipe import load_recipe
    from intaglio.training.run import resume, train

__all__ = [
    "LLM",
    "Decoder",
    "DecoderSpec",
    "SamplingParams",
    "UserError",
    "load_model",
    "load_recipe",
    "load_tokenizer",
    "plan",
    "plan_training",
    "preset",
    "pull",
    "resume",
    "save_model",
    "train",
]

_HOMES = {
    "LLM": "intaglio.engine.llm",
    "Decoder": "intaglio.models.decoder",
    "DecoderSpec": "intaglio.specs",
    "SamplingParams": "intaglio.engine.sampling_params",
    "UserError": "intaglio.errors",
    "load_model": "intaglio.adapters.models",
    "load_recipe": "intaglio.training.recipe",
    "load_tokenizer": "intaglio.checkpoints.models",
    "plan": "intaglio.planning",
    "plan_training": "intaglio.planning",
    "preset": "intaglio.lineage.presets",
    "pull": "intaglio.checkpoints.pull",
    "resume": "intaglio.training.run",
    "save_model": "intaglio.checkpoints.save",
    "train": "intaglio.training.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'intaglio' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
