"""What a model is: frozen descriptions, with parameters, FLOPs and KV bytes by arithmetic. No torch."""

from intaglio.specs.attention import AttentionSpec, LatentAttentionSpec, ProjectionBias, QKNormSpec
from intaglio.specs.base import Spec, dtype_bytes, load_yaml, validate
from intaglio.specs.decoder import BlockSpec, CycleSpec, DecoderSpec
from intaglio.specs.encoder_decoder import EncoderDecoderSpec, StackSpec
from intaglio.specs.feed_forward import FeedForwardSpec, MoESpec, RouterSpec, SwishSpec
from intaglio.specs.model import ModelSpec, validate_model
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
from intaglio.specs.recurrent import CellSpec, GRUCellSpec, LSTMCellSpec, RecurrentSpec, RNNCellSpec
from intaglio.specs.seq2seq import ScoringSpec, Seq2SeqSpec

__all__ = [
    "AttentionSpec",
    "BlockSpec",
    "CellSpec",
    "CycleSpec",
    "DecoderSpec",
    "DynamicScaling",
    "EncoderDecoderSpec",
    "FeedForwardSpec",
    "GRUCellSpec",
    "LSTMCellSpec",
    "LatentAttentionSpec",
    "LayerNormSpec",
    "LearnedPositionsSpec",
    "LinearScaling",
    "Llama3Scaling",
    "MoESpec",
    "ModelSpec",
    "NormSpec",
    "ProjectionBias",
    "QKNormSpec",
    "RMSNormSpec",
    "RNNCellSpec",
    "RecurrentSpec",
    "RotarySpec",
    "RouterSpec",
    "ScoringSpec",
    "Seq2SeqSpec",
    "SinusoidalPositionsSpec",
    "Spec",
    "StackSpec",
    "SwishSpec",
    "YarnScaling",
    "dtype_bytes",
    "load_yaml",
    "validate",
    "validate_model",
]
