"""The planned peak of a step beside what PyTorch's allocator on a GPU counted, on 20 configurations.

    python tests/gpu/plan_check.py

The list was written down before any of it was run on a GPU, and no constant of the planner is fitted to it. Each line
has the plan's signed error against `torch.cuda.max_memory_allocated` over the second step of the trainer's own loop,
and what the runtime took beside: what the allocator held beyond the tensors (`max_memory_reserved`), and what is gone
beyond that (`mem_get_info`; other processes' too). What stood before a model was made, such as cuBLAS' workspaces, is
not the model's. Layouts of several ranks run as one rank of a
fake process group, whose collectives send nothing: what they gather is never written, so that losses mean nothing.

Exits with 1 if a point is beyond 3 %. Where torch finds no GPU, it says so and measures nothing.

Not in the list: fp32 with grouped heads, for which CUDA has no fused attention; experts, whose rows depend on numbers
that a fake group does not have; pipelines, whose stages wait for each other.

Legend: GiB are of 2**30 bytes.
"""

import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch

from intaglio.planning.job_plan import JobPlan, plan_job
from intaglio.planning.jobs import JobSpec
from intaglio.specs import DecoderSpec, validate
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.parallel import ParallelSpec
from intaglio.specs.quantization import QuantizationSpec
from intaglio.training.memory.imagined import imagined_ranks
from intaglio.training.memory.rehearsal import Rehearsal

__all__ = ["CONFIGURATIONS", "WITHIN", "Configuration", "Planned", "Seen", "main", "rehearsed", "told"]

GIB: Final = 1 << 30
WITHIN: Final = 0.03
_WIDTH: Final = 128  # of a head

Trains = Literal["all", "lora", "qlora"]


class Planned:
    """The specs of a dataclass that has these fields."""

    trains: Trains
    layout: dict[str, Any]
    dtype: Literal["bfloat16", "float32"]
    checkpointing: Literal["selective"] | int
    sequence: int
    micro_batch: int
    accumulation: int

    @property
    def job(self) -> JobSpec:
        """What is done."""
        return JobSpec(
            adapter=None if self.trains == "all" else LoRASpec(),
            quantization=QuantizationSpec() if self.trains == "qlora" else None,
            dtype=self.dtype,
            sequence=self.sequence,
            micro_batch=self.micro_batch,
            accumulation=self.accumulation,
            checkpointing=self.checkpointing,
        )

    @property
    def parallel(self) -> ParallelSpec:
        """Of the ranks."""
        return ParallelSpec.model_validate(self.layout)


@dataclass(frozen=True)
class Configuration(Planned):
    """A job.

    Attributes:
        kind: `llama` has RMSNorm, rotary angles, heads in groups of four and a gated feed-forward; `gpt` LayerNorm,
            learned positions, a plain feed-forward and tied embeddings; `mha` is a llama whose heads stand alone.
        hidden, layers, vocab: E, L and V of the model.
        sequence, micro_batch: tokens of a sequence, and sequences.
        trains: all weights, LoRA, or LoRA beside weights of 4 bits.
        dtype, checkpointing, accumulation: see `JobSpec`.
        layout: of `ParallelSpec`; empty: one process.
    """

    kind: Literal["llama", "gpt", "mha"]
    hidden: int
    layers: int
    vocab: int
    sequence: int
    micro_batch: int
    trains: Trains = "all"
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    checkpointing: Literal["selective"] | int = 0
    layout: dict[str, Any] = field(default_factory=dict)
    accumulation: int = 1

    @property
    def name(self) -> str:
        """For people."""
        layout = "".join(f", {key} {value}" for key, value in self.layout.items())
        model = f"{self.kind} {self.hidden} x {self.layers}, V {self.vocab}"
        tokens = f"{self.micro_batch} x {self.sequence}" + (f" x {self.accumulation}" if self.accumulation > 1 else "")
        return f"{model}, {self.trains}, {self.dtype}, {tokens}, checkpointing {self.checkpointing}{layout}"

    @property
    def spec(self) -> DecoderSpec:
        """Of the model."""
        heads = self.hidden // _WIDTH
        plain = self.kind == "gpt"
        attention: dict[str, Any] = {"num_heads": heads, "num_kv_heads": heads // 4 if self.kind == "llama" else heads}
        feed_forward = {"intermediate_size": 4 * self.hidden, "activation": "gelu"}
        if not plain:
            attention["rope"] = {}
            feed_forward = {"intermediate_size": 7 * self.hidden // 2, "activation": "silu", "gated": True}
        layer = {
            "repeat": self.layers,
            "norm": {"kind": "layer_norm" if plain else "rms_norm"},
            "attention": attention,
            "feed_forward": feed_forward,
        }
        fields: dict[str, Any] = {
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "max_position_embeddings": 8192,
            "layers": [layer],
            **({"positions": {"kind": "learned"}, "tie_embeddings": True} if plain else {}),
        }
        spec: DecoderSpec = validate(DecoderSpec, fields, self.name)
        return spec

    @property
    def plan(self) -> JobPlan:
        """As the planner has it, for a GPU."""
        return plan_job(self.spec, self.job, self.parallel)


SMALL: Final = Configuration("mha", 256, 2, 512, 128, 1)
"""Runs before the list, so that whatever is made once is there."""

CONFIGURATIONS: Final = (
    Configuration("llama", 1024, 8, 32_000, 2048, 4),
    Configuration("llama", 1024, 16, 32_000, 1024, 8, checkpointing=1),
    Configuration("llama", 2048, 8, 32_000, 4096, 1),
    Configuration("llama", 2048, 6, 128_256, 4096, 1, checkpointing="selective"),
    Configuration("llama", 2048, 8, 128_256, 8192, 1, checkpointing=1),
    Configuration("llama", 4096, 2, 32_000, 4096, 2),
    Configuration("mha", 1024, 8, 32_000, 2048, 4, dtype="float32"),
    Configuration("mha", 2048, 4, 32_000, 1024, 4, dtype="float32", checkpointing=1),
    Configuration("gpt", 1024, 12, 50_304, 1024, 8),
    Configuration("gpt", 1024, 12, 50_304, 1024, 4, dtype="float32", checkpointing="selective"),
    Configuration("llama", 4096, 8, 32_000, 2048, 2, "lora"),
    Configuration("llama", 4096, 8, 128_256, 4096, 1, "lora", checkpointing=1),
    Configuration("llama", 2048, 8, 32_000, 2048, 4, "lora", checkpointing="selective"),
    Configuration("llama", 4096, 8, 32_000, 2048, 2, "qlora"),
    Configuration("llama", 4096, 12, 128_256, 4096, 1, "qlora", checkpointing=1),
    Configuration("llama", 2048, 8, 65_536, 2048, 2, layout={"dp": 4, "zero": 1}, accumulation=2),
    Configuration("llama", 2048, 12, 32_000, 2048, 2, checkpointing=1, layout={"dp": 8, "zero": 2}, accumulation=2),
    Configuration("llama", 4096, 6, 32_000, 4096, 1, layout={"dp": 8, "zero": 3}),
    Configuration("llama", 4096, 8, 128_256, 4096, 1, layout={"tp": 4}),
    Configuration("llama", 4096, 6, 128_256, 4096, 1, checkpointing=1, layout={"dp": 4, "zero": 3, "tp": 2}),
)


@dataclass(frozen=True)
class Seen:
    """A step on a GPU, in bytes.

    Attributes:
        allocated: by tensors, at most.
        held: by the allocator beyond those, at most.
        beside: gone from the device beyond what the allocator held: context, kernels, libraries.
        seconds: of building and stepping.
    """

    allocated: int
    held: int
    beside: int
    seconds: float


def rehearsed(one: Configuration, ranks: Any, device: str) -> Rehearsal:
    """The trainer's loop of a configuration, after a step; it goes on whatever a loss is."""
    rehearsal = Rehearsal(one.spec, one.job, ranks, device)
    rehearsal.loop._require_finite = lambda *_: None  # type: ignore[method-assign]
    rehearsal.loop.step()
    return rehearsal


def measured(one: Configuration) -> Seen:
    """A step of it on this machine's GPU; what stood there before is not counted."""
    start = time.perf_counter()
    _let_go()
    before, (_, total) = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()
    with imagined_ranks(one.parallel, device="cuda") as ranks:
        rehearsal = rehearsed(one, ranks, "cuda")
        _let_go()
        torch.cuda.reset_peak_memory_stats()
        rehearsal.loop.step()
        torch.cuda.synchronize()
        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        free, _ = torch.cuda.mem_get_info()
        held_now = torch.cuda.memory_reserved()
        del rehearsal, ranks
    _let_go()
    seconds = time.perf_counter() - start
    return Seen(allocated - before, reserved - allocated, total - free - held_now, seconds)


def _let_go() -> None:
    """Gives back what nothing holds."""
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()


def told(one: Configuration, planned: int, seen: Seen) -> tuple[str, bool]:
    """A line of the table, and whether the plan is as near as it should be."""
    error = planned / seen.allocated - 1
    sizes = "".join(f"{size / GIB:9.3f}" for size in (planned, seen.allocated, seen.held, seen.beside))
    near = abs(error) <= WITHIN
    return f"{error:+7.2%}{sizes}{seen.seconds:7.1f}  {one.name}{'' if near else '  BEYOND 3 %'}", near


def main(configurations: Sequence[Configuration] = CONFIGURATIONS) -> int:
    """Prints every point; 1 if one is too far off."""
    if not torch.cuda.is_available():
        print("torch finds no GPU here: nothing is measured")
        return 0
    torch.cuda.init()
    measured(SMALL)
    room = torch.cuda.mem_get_info()[0]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; GiB: planned, allocated, held beyond, beside")
    near: list[bool] = []
    left_out = 0
    for one in configurations:
        planned = one.plan.peak_bytes
        if planned > 0.9 * room:
            left_out += 1
            print(f"does not fit here ({planned / GIB:.1f} GiB)  {one.name}")
            continue
        line, good = told(one, planned, measured(one))
        print(line, flush=True)
        near.append(good)
    print(f"{sum(near)} of {len(near)} within {WITHIN:.0%}" + (f", {left_out} left out" if left_out else ""))
    return 0 if all(near) else 1


if __name__ == "__main__":
    sys.exit(main())
