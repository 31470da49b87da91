"""openai-gpt: GPT-1, the same with the norm behind the residual sum."""

from typing import Any

from intaglio.specs.decoder import DecoderSpec
from intaglio.specs.families import gpt2
from intaglio.specs.families.config import Config, as_kind
from intaglio.specs.feed_forward import FeedForwardSpec

ARCHITECTURE = "OpenAIGPTLMHeadModel"


def read(config: Config) -> DecoderSpec:
    activation = config.choice("afn", {"gelu": "gelu_tanh", "silu": "silu", "swish": "silu", "relu": "relu"}, "gelu")
    return gpt2.read_gpt(config, "post", 4 * config.integer("n_embd"), activation)


def write(spec: DecoderSpec) -> dict[str, Any]:
    activation = as_kind(spec.blocks[0].feed_forward, FeedForwardSpec).activation
    return {**gpt2.write_gpt(spec), "afn": "gelu" if activation == "gelu_tanh" else activation}
