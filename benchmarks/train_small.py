"""Pretraining a model of 10 million parameters from scratch, beside LitGPT's step and a plain loop like nanoGPT's.

The same architecture, batch, length, AdamW and clipping on all sides, in fp32 and in bf16 (fp32 weights under bf16
products everywhere), each in a process of its own. The peers run eagerly and compiled, as both come; what compiling
takes is not counted. Ours runs eagerly. The ratio is to the faster of the two.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from _loops import SMALL, SMALL_BATCH, SMALL_LENGTH, mfu, pretraining, small_spec
from _nano import Nano, train_step
from _timing import apart_in_turn, report

from intaglio.training.log import measured_peak

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
FABRIC = {"fp32": "32-true", "bf16": "bf16-mixed"}
LITGPT_PYTHON = Path(__file__).parents[1] / ".venv-litgpt" / "bin" / "python"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="measured steps of each side, after one that is not")
    parser.add_argument("--precision", choices=[*PRECISIONS], help="this one alone")
    parser.add_argument("--side", choices=["ours", "nano", "nano_compiled"], help="this side alone, in this process")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.side:
        print(json.dumps({"tokens_per_second": speed_of(options.side, options.precision, options.steps)}))
        return
    if not LITGPT_PYTHON.exists():
        sys.exit("LitGPT is not installed: make litgpt-env")
    for precision in [options.precision] if options.precision else PRECISIONS:
        compare(precision, options.steps, options.rounds, options.threads)


def speed_of(side: str, precision: str, steps: int) -> float:
    """Tokens per second of whole steps of a side that runs in this environment."""
    run: Callable[[], object]
    if side == "ours":
        run = pretraining(PRECISIONS[precision]).step
    else:
        run = plain_loop(side == "nano_compiled", precision == "bf16")
    run()
    start = time.perf_counter()
    for _ in range(steps):
        run()
    return steps * SMALL_BATCH * SMALL_LENGTH / (time.perf_counter() - start)


def plain_loop(compiled: bool, bf16: bool) -> Callable[[], None]:
    """A step of the plain loop on random ids."""
    model = Nano(**SMALL, length=SMALL_LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    if compiled:
        model.compile()
    rows = torch.randint(SMALL["vocab_size"], (SMALL_BATCH, SMALL_LENGTH + 1))
    return lambda: train_step(model, optimizer, rows[:, :-1], rows[:, 1:], bf16)


def compare(precision: str, steps: int, rounds: int, threads: int) -> None:
    """One line of figures for one precision."""
    here = [sys.executable, __file__, "--threads", str(threads), "--steps", str(steps), "--precision", precision]
    job = {**SMALL, "batch": SMALL_BATCH, "length": SMALL_LENGTH, "steps": steps, "precision": FABRIC[precision]}
    there = [str(LITGPT_PYTHON), str(Path(__file__).with_name("_litgpt.py"))]
    sides = {side: [*here, "--side", side] for side in ("ours", "nano", "nano_compiled")}
    sides["litgpt"] = [*there, json.dumps({**job, "compile": False})]
    sides["litgpt_compiled"] = [*there, json.dumps({**job, "compile": True})]
    found = apart_in_turn(sides, rounds, threads)
    speeds = {side: figures["tokens_per_second"] for side, figures in found.items()}
    peak = measured_peak(PRECISIONS[precision], size=2048, seconds=2.0)
    report(
        "train_small",
        precision=precision,
        parameters=small_spec().num_parameters(),
        tokens_per_second=speeds,
        ratio_to_litgpt=round(speeds["ours"] / max(speeds["litgpt"], speeds["litgpt_compiled"]), 2),
        ratio_to_plain_loop=round(speeds["ours"] / max(speeds["nano"], speeds["nano_compiled"]), 2),
        mfu=mfu(small_spec(), SMALL_LENGTH // 2, speeds["ours"], peak),
    )


if __name__ == "__main__":
    main()
