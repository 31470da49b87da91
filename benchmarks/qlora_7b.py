"""The promise for 24 GB, as a program: two QLoRA steps of a model of 7 or 8 billion parameters on a CPU.

A preset's architecture with random weights, made and put into 4 bits one matrix at a time, LoRA beside every matrix of
the layers, all layers computed again in the backward, moments paged. Two steps on one row of tokens. Afterwards the
loss must have fallen, the gradient of every B must have been finite and not 0, and nothing may have been swapped out.
The most memory that the process had resident is printed beside the closed forms of `planning`.

    python benchmarks/qlora_7b.py                                # Llama 3 8B, 512 tokens
    python benchmarks/qlora_7b.py --preset qwen2-7b
    python benchmarks/qlora_7b.py --layers 2 --tokens 64         # a try
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from _timing import peak_gigabytes, report, seconds

from intaglio.adapters.attach import attach, trainable_share
from intaglio.adapters.quantize import random_quantized
from intaglio.lineage.presets import preset
from intaglio.models.quantize import quantized_matrices
from intaglio.planning.training import plan_training
from intaglio.specs import DecoderSpec
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.quantization import QuantizationSpec
from intaglio.training.objectives.chunked_loss import chunked_cross_entropy
from intaglio.training.stepping.paged import PagedAdamW
from intaglio.training.stepping.tricks import recompute_activations

CHUNK = 128
"""Tokens whose logits exist at a time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="llama3-8b")
    parser.add_argument("--layers", type=int, help="fewer than the preset has")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lora, quantization, spec = LoRASpec(r=options.rank), QuantizationSpec(), spec_of(options.preset, options.layers)
    swapped = swapped_bytes()
    started = time.perf_counter()
    model = random_quantized(spec, quantization, torch.bfloat16)
    attach(model, lora)
    recompute_activations(model, 1)
    made, at_rest = time.perf_counter() - started, peak_gigabytes()
    losses, step_seconds = train(model, options.tokens, options.steps)
    plan = plan_training(spec, options.tokens, chunk=CHUNK, checkpoint_every=1, adapter=lora, quantization=quantization)
    assert losses[-1] < losses[0], f"the loss has not fallen: {losses}"
    assert swapped_bytes() == swapped, "the system has swapped"
    trainable, total = trainable_share(model)
    report(
        "qlora_7b",
        preset=options.preset,
        parameters=total - trainable,
        trainable=trainable,
        tokens=options.tokens,
        losses=[round(loss, 4) for loss in losses],
        bits_per_weight=round(bits_per_weight(model), 4),
        seconds_to_make=round(made, 1),
        seconds_a_step=[round(one, 1) for one in step_seconds],
        peak_gb_when_made=round(at_rest, 2),
        peak_gb=round(peak_gigabytes(), 2),
        planned_gb=round(plan.peak / 1e9, 2),
        planned_resident_gb=round(plan.resident / 1e9, 2),
    )


def spec_of(name: str, layers: int | None) -> DecoderSpec:
    """The preset's spec, with its first layers only if so said."""
    spec = preset(name).spec
    assert isinstance(spec, DecoderSpec)
    return spec if layers is None else spec.updated(layers=list(spec.blocks[:layers]))


def train(model: Any, tokens: int, steps: int) -> tuple[list[float], list[float]]:
    """The loss before each step and after the last, and the seconds of each step."""
    ids = torch.randint(model.spec.vocab_size, (1, tokens + 1), generator=torch.Generator().manual_seed(1))
    optimizer = PagedAdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.0)
    losses: list[float] = []

    def step() -> None:
        loss = loss_of(model, ids)
        loss.backward()
        losses.append(loss.item())
        check_gradients(model)
        optimizer.step()
        optimizer.zero_grad()

    times = [seconds(step) for _ in range(steps)]
    with torch.no_grad():
        losses.append(loss_of(model, ids).item())
    return losses, times


def loss_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Nats a token."""
    hidden = model.hidden_states(ids[:, :-1])[0]
    return chunked_cross_entropy(hidden, model.lm_head.weight, ids[0, 1:], chunk=CHUNK) / hidden.shape[0]


def check_gradients(model: Any) -> None:
    """That of every B is finite and not 0."""
    matrices = {name: p for name, p in model.named_parameters() if name.endswith("lora_B")}
    assert matrices, "there are no adapters"
    for name, parameter in matrices.items():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.count_nonzero() > 0, name


def bits_per_weight(model: Any) -> float:
    """Of the matrices that are 4 bits, scales included."""
    matrices = quantized_matrices(model).values()
    held = sum(t.numel() * t.element_size() for matrix in matrices for t in matrix.buffers())
    return 8 * held / sum(weight.shape[0] * weight.shape[1] for matrix in matrices for weight in matrix.weights())


def swapped_bytes() -> int:
    """Pages of this machine that were swapped out since it started; 0 where no system says it."""
    file = Path("/proc/vmstat")
    lines = file.read_text().splitlines() if file.is_file() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("pswpout ")), 0)


if __name__ == "__main__":
    main()
