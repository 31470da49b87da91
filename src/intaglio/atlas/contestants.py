"""The language models that are compared: the three recurrent cells and a small Transformer, equal in parameters.

Each is sized by the one number of its own that leaves the rest alone: the recurrent ones by their state, the
Transformer by its feed-forward layers.
"""

from typing import Any, Final

from intaglio.specs import ModelSpec, validate_model

__all__ = ["KINDS", "RECURRENT", "architecture", "spec_of"]

RECURRENT: Final = {"RNN": "rnn", "LSTM": "lstm", "GRU": "gru"}
KINDS: Final = (*RECURRENT, "Transformer")
_LAYERS: Final = 2
_VOCABULARY: Final = 128
"""Characters; those that are rarer are one token."""


def architecture(kind: str, parameters: int, width: int, context: int) -> dict[str, Any]:
    """The architecture of a recipe whose model has as nearly `parameters` as it can.

    Args:
        kind: of `KINDS`.
        parameters: all of them.
        width: features of an embedding.
        context: tokens that the Transformer has places for.
    """
    fitting = (_shape(kind, size, width, context) for size in range(8, 1025, 2))
    return min(fitting, key=lambda shape: abs(spec_of(shape).num_parameters() - parameters))


def spec_of(shape: dict[str, Any]) -> ModelSpec:
    """The spec that an architecture says."""
    return validate_model(shape, "architecture")


def _shape(kind: str, size: int, width: int, context: int) -> dict[str, Any]:
    if kind in RECURRENT:
        return {
            "kind": "recurrent",
            "vocab_size": _VOCABULARY,
            "embedding_size": width,
            "hidden_size": size,
            "num_layers": _LAYERS,
            "cell": {"kind": RECURRENT[kind]},
        }
    layer = {
        "repeat": _LAYERS,
        "norm": {"kind": "rms_norm"},
        "attention": {"num_heads": 4, "rope": {}},
        "feed_forward": {"intermediate_size": size, "activation": "silu", "gated": True},
    }
    return {
        "vocab_size": _VOCABULARY,
        "hidden_size": width,
        "max_position_embeddings": context,
        "tie_embeddings": True,
        "layers": [layer],
    }
