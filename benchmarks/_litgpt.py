"""LitGPT's side of `train_small.py`, run by the Python of an environment of its own (`make litgpt-env`).

    .venv-litgpt/bin/python benchmarks/_litgpt.py '{"layers": 7, ...}'

LitGPT's model and loss, Fabric and the step of its pretraining script, with AdamW fused, which that script leaves to
CUDA. The argument has the sizes of `_loops.SMALL`, and batch, length, steps, precision (Fabric's word) and compile.
"""

import json
import sys
import time
from typing import Any

import lightning
import torch
from litgpt.config import Config
from litgpt.model import GPT
from litgpt.utils import chunked_cross_entropy


def build(job: dict[str, Any]) -> GPT:
    """The model of `_loops.SMALL`."""
    config = Config(
        block_size=job["length"],
        n_layer=job["layers"],
        n_embd=job["hidden_size"],
        n_head=job["num_heads"],
        intermediate_size=job["intermediate_size"],
        vocab_size=job["vocab_size"],
        padded_vocab_size=job["vocab_size"],
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
    )
    model = GPT(config)
    model.transformer.wte.weight = model.lm_head.weight
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.02)
    return model


def main(job: dict[str, Any]) -> None:
    fabric = lightning.Fabric(accelerator="cpu", devices=1, precision=job["precision"])
    torch.manual_seed(0)
    model = build(job)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    model = fabric.setup(torch.compile(model) if job["compile"] else model)
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True))
    rows = torch.randint(job["vocab_size"], (job["batch"], job["length"] + 1))

    def step() -> None:
        loss = chunked_cross_entropy(model(rows[:, :-1].contiguous()), rows[:, 1:].contiguous())
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()

    step()
    start = time.perf_counter()
    for _ in range(job["steps"]):
        step()
    speed = job["steps"] * job["batch"] * job["length"] / (time.perf_counter() - start)
    print(json.dumps({"tokens_per_second": speed, "parameters": parameters}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
