"""qwen3: qwen2 whose biases gave way to a norm on each head's queries and keys."""

from typing import Any

from intaglio.specs.attention import QKNormSpec
from intaglio.specs.decoder import DecoderSpec
from intaglio.specs.families import common, qwen2
from intaglio.specs.families.config import Config

ARCHITECTURE = "Qwen3ForCausalLM"


def read(config: Config) -> DecoderSpec:
    qk_norm = QKNormSpec(norm=common.rms_norm(config), over="head")
    return qwen2.read_with(config, qk_norm=qk_norm, bias=common.read_bias(config))


def write(spec: DecoderSpec) -> dict[str, Any]:
    return {**qwen2.write(spec), "attention_bias": spec.blocks[0].attention.bias.o}  # type: ignore[union-attr]
