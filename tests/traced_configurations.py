"""The configurations whose peak is planned and traced, written down before any of them was run.

Real widths, few layers: on fake tensors a wide layer takes no longer than a narrow one, and small things weigh little.
"""

from dataclasses import dataclass
from typing import Any, Literal

from gpu.plan_check import Planned
from intaglio.lineage.presets import preset
from intaglio.specs import DecoderSpec

__all__ = ["CONFIGURATIONS", "Configuration"]

DEPTHS = {
    "llama3.2-1b": 4,
    "mistral-7b": 3,
    "qwen3-0.6b": 4,
    "gpt2": 4,
    "gemma2-2b": 4,
    "mixtral-8x7b": 2,
    "smollm2-135m": 6,
    "deepseek-v2-lite": 3,
}
"""Layers of each preset; the first of them."""


@dataclass(frozen=True)
class Configuration(Planned):
    """A job on a layout.

    Attributes:
        model: a preset, cut to `DEPTHS` layers.
        trains: all weights, LoRA, or LoRA beside 4 bits.
        layout: of `ParallelSpec`; empty: one process.
        dtype, checkpointing, sequence, micro_batch, accumulation: see `JobSpec`.
    """

    model: str
    trains: Literal["all", "lora", "qlora"]
    layout: dict[str, Any]
    dtype: Literal["bfloat16", "float32"]
    checkpointing: Any
    sequence: int
    micro_batch: int = 1
    accumulation: int = 1

    @property
    def name(self) -> str:
        """For people."""
        layout = " ".join(f"{key} {value}" for key, value in self.layout.items()) or "one process"
        tokens = f"{self.micro_batch} x {self.sequence} x {self.accumulation}"
        return f"{self.model}, {self.trains}, {layout}, {self.dtype}, checkpointing {self.checkpointing}, {tokens}"

    @property
    def spec(self) -> DecoderSpec:
        """Of the cut model."""
        whole: Any = preset(self.model).spec
        spec: DecoderSpec = whole.updated(layers=whole.blocks[: DEPTHS[self.model]], final_norm=whole.final_norm)
        return spec


def _zero(stage: int, dp: int, **more: Any) -> dict[str, Any]:
    return {"zero": stage, "dp": dp, **more}


LLAMA, MISTRAL, QWEN, GPT, GEMMA, MIXTRAL = list(DEPTHS)[:6]
BF16: Literal["bfloat16"] = "bfloat16"
FP32: Literal["float32"] = "float32"

CONFIGURATIONS = (
    Configuration(LLAMA, "all", {}, BF16, 0, 2048),
    Configuration(LLAMA, "all", {}, BF16, 1, 2048),
    Configuration(LLAMA, "all", {}, BF16, "selective", 2048),
    Configuration(LLAMA, "all", {}, FP32, 0, 1024),
    Configuration(LLAMA, "all", _zero(0, 4), BF16, 0, 2048, 1, 2),
    Configuration(LLAMA, "all", _zero(1, 8), BF16, 0, 2048),
    Configuration(LLAMA, "all", _zero(1, 8), BF16, 1, 2048, 1, 4),
    Configuration(LLAMA, "all", _zero(2, 8), BF16, "selective", 2048, 1, 2),
    Configuration(LLAMA, "all", _zero(3, 8), BF16, 0, 4096),
    Configuration(LLAMA, "all", _zero(3, 64), BF16, 1, 8192),
    Configuration(LLAMA, "all", _zero(3, 8), FP32, 0, 1024),
    Configuration(LLAMA, "all", _zero(3, 8, hsdp=2), BF16, 1, 4096, 2),
    Configuration(LLAMA, "all", _zero(2, 8, hsdp=2), BF16, 0, 2048),
    Configuration(MISTRAL, "all", _zero(3, 16), BF16, 0, 8192),
    Configuration(MISTRAL, "all", _zero(3, 16), BF16, 1, 4096),
    Configuration(MISTRAL, "lora", {}, BF16, 0, 2048),
    Configuration(MISTRAL, "lora", {}, BF16, 1, 4096),
    Configuration(MISTRAL, "qlora", {}, BF16, 0, 2048),
    Configuration(MISTRAL, "qlora", {}, BF16, 1, 4096),
    Configuration(MISTRAL, "qlora", _zero(3, 8), BF16, "selective", 2048),
    Configuration(MISTRAL, "lora", _zero(3, 8), BF16, 0, 2048),
    Configuration(MISTRAL, "lora", _zero(0, 4), FP32, 0, 1024),
    Configuration(QWEN, "all", {}, BF16, 0, 2048, 4),
    Configuration(QWEN, "all", _zero(2, 8), BF16, 1, 4096),
    Configuration(QWEN, "lora", _zero(1, 4), BF16, "selective", 2048, 2),
    Configuration(GPT, "all", {}, FP32, 0, 1024, 4),
    Configuration(GPT, "all", _zero(3, 4), BF16, 0, 1024, 8),
    Configuration(GPT, "all", _zero(1, 4), BF16, 1, 512, 8),
    Configuration(GEMMA, "all", {}, BF16, 0, 1024),
    Configuration(GEMMA, "all", _zero(3, 8), BF16, 1, 2048),
    Configuration(MIXTRAL, "all", _zero(3, 8), BF16, 0, 2048),
    Configuration(MIXTRAL, "lora", _zero(3, 8), BF16, 1, 2048),
    Configuration("smollm2-135m", "all", {}, BF16, 0, 256, 8),
    Configuration("deepseek-v2-lite", "all", _zero(3, 8), BF16, 0, 2048),
    Configuration(LLAMA, "all", {"tp": 4}, BF16, 0, 4096),
    Configuration(LLAMA, "all", {"tp": 4}, FP32, 0, 1024),
    Configuration(LLAMA, "all", {"tp": 4, "sequence_parallel": False}, BF16, 0, 2048),
    Configuration(LLAMA, "all", _zero(3, 4, tp=2), BF16, 1, 4096),
    Configuration(MISTRAL, "all", {"tp": 8}, BF16, "selective", 8192),
    Configuration(LLAMA, "lora", {"tp": 2}, BF16, 0, 2048),
    Configuration(QWEN, "all", _zero(1, 2, tp=2), BF16, 0, 2048, 1, 2),
    Configuration(LLAMA, "all", _zero(3, 2, cp=2), BF16, 0, 4096),
    Configuration(LLAMA, "all", _zero(3, 2, cp=2, cp_method="all_gather"), BF16, 0, 4096),
    Configuration(LLAMA, "all", {"pp": 2}, BF16, 0, 2048, 1, 4),
    Configuration(LLAMA, "all", _zero(1, 2, pp=2), BF16, 1, 2048, 1, 4),
)
