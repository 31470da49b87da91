"""What a model is: frozen descriptions, with parameters, FLOPs and KV bytes by arithmetic. No torch."""

from intaglio.specs.attention import AttentionSpec, LatentAttentionSpec, ProjectionBias, QKNormSpec
from intaglio.specs.base import Spec, dtype_bytes, load_yaml, validate
from intaglio.specs.decoder import BlockSpec, CycleSpec, DecoderSpec
from intaglio.specs.feed_forward import FeedForwardSpec, MoESpec, RouterSpec, SwishSpec
from intaglio.specs.norm import LayerNormSpec, NormSpec, RMSNormSpec
from intaglio.specs.position import (
    DynamicScaling,
    LearnedPositionsSpec,
    LinearScaling,
    Llama3Scaling,
    RotarySpec,
    SinusoidalPositionsSpec,
    YarnScaling,
)

__all__ = [
    "AttentionSpec",
    "BlockSpec",
    "CycleSpec",
    "DecoderSpec",
    "DynamicScaling",
    "FeedForwardSpec",
    "LatentAttentionSpec",
    "LayerNormSpec",
    "LearnedPositionsSpec",
    "LinearScaling",
    "Llama3Scaling",
    "MoESpec",
    "NormSpec",
    "ProjectionBias",
    "QKNormSpec",
    "RMSNormSpec",
    "RotarySpec",
    "RouterSpec",
    "SinusoidalPositionsSpec",
    "Spec",
    "SwishSpec",
    "YarnScaling",
    "dtype_bytes",
    "load_yaml",
    "validate",
]
