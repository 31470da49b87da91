"""DPO of SmolLM2 on ragged real pairs, beside TRL's DPOTrainer: pairs per second of a whole epoch, and memory.

The same PIQA pairs through the same template, fp32 weights under bf16 products, AdamW, beta 0.1, about eight pairs an
optimizer step. TRL runs as it comes (a reference model in fp32 that is asked in every step), with the reference asked
once beforehand (precomputed), and without padding (padding_free); whichever is fastest is the peer of the second ratio.
Ours asks the reference once, and that counts: the clock runs from before it to the end of the epoch, on both sides
without loading and tokenising. Each side runs in a process of its own, so that the peak of resident memory is its own.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from _timing import apart_in_turn, model_directory, peak_gigabytes, report

PAIRS, AT_ONCE, LENGTH = 96, 8, 512
TRL: dict[str, dict[str, Any]] = {
    "plain": {},
    "precomputed": {"precompute_ref_log_probs": True, "precompute_ref_batch_size": AT_ONCE},
    "padding_free": {"padding_free": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--side", choices=["ours", *TRL], help="run this side alone, in this process")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.side:
        print(json.dumps(ours() if options.side == "ours" else trl(TRL[options.side])))
        return
    command = [sys.executable, __file__, "--threads", str(options.threads), "--side"]
    compare(apart_in_turn({side: [*command, side] for side in ("ours", *TRL)}, options.rounds, options.threads))


def pairs() -> list[dict[str, Any]]:
    """The first rows of the set: messages, as `intaglio pull piqa-pairs` writes them."""
    from intaglio.data.datasets.pull import data_rows

    with data_rows("piqa-pairs").open(encoding="utf-8") as file:
        return [json.loads(line) for line, _ in zip(file, range(PAIRS), strict=False)]


def ours() -> dict[str, float]:
    """The loop that `intaglio train` runs."""
    from intaglio.specs import validate
    from intaglio.training.batching.data import read_data
    from intaglio.training.loop import Loop
    from intaglio.training.recipe import Recipe
    from intaglio.training.start import build_tokenizer
    from intaglio.training.stepping.master import MasterWeights
    from intaglio.training.stepping.optimizer import build_optimizers
    from intaglio.training.tasks import task_of

    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "pairs.jsonl"
        rows.write_text("".join(json.dumps(row) + "\n" for row in pairs()), encoding="utf-8")
        recipe = validate(Recipe, _recipe(rows), "recipe")
        tokenizer = build_tokenizer(recipe)
        task = task_of(recipe, read_data(recipe, tokenizer, _quiet), _quiet)
        stream, model = task.stream(), task.model(tokenizer)
        with torch.no_grad():  # by a hair, so that no earlier round's reference is for this model
            model.norm.weight[0] *= 1 + 1e-6 * time.time() % 1e-3
        masters = MasterWeights(model.train(), torch.bfloat16)
        optimizers = build_optimizers(recipe.optimizer, masters.masters)
        start = time.perf_counter()
        loop = Loop(model, masters, task.objective(), stream, optimizers, recipe.schedule, steps=stream.num_rows)
        steps = [loop.step() for _ in range(stream.num_rows)]
        elapsed = time.perf_counter() - start
    return _figures(elapsed, steps[0].loss, sum(step.targets for step in steps))


def _recipe(rows: Path) -> dict[str, Any]:
    return {
        "model": "smollm2-135m-instruct",
        "data": str(rows),
        "objective": {"kind": "dpo", "beta": 0.1, "reference": "precomputed"},
        "max_length": LENGTH,
        "micro_batch": 1,
        "precision": "bfloat16",
        "epochs": 1,
        "optimizer": {"kind": "adamw", "learning_rate": 1e-6, "weight_decay": 0.0},
    }


def _quiet(line: str) -> None:
    """Says nothing."""


def trl(settings: dict[str, Any]) -> dict[str, float]:
    """DPOTrainer on the same pairs, one epoch."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    directory = model_directory()
    policy, reference = (AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32) for _ in range(2))
    with tempfile.TemporaryDirectory() as output:
        config = DPOConfig(
            output_dir=output,
            bf16=True,
            use_cpu=True,
            gradient_checkpointing=False,
            per_device_train_batch_size=AT_ONCE,
            num_train_epochs=1,
            max_length=LENGTH,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            learning_rate=1e-6,
            **settings,
        )
        start = time.perf_counter()
        trainer = DPOTrainer(
            model=policy,
            ref_model=reference,
            args=config,
            train_dataset=Dataset.from_list(pairs()),
            processing_class=AutoTokenizer.from_pretrained(directory),
        )
        if not settings.get("precompute_ref_log_probs"):
            start = time.perf_counter()
        trainer.train()
        elapsed = time.perf_counter() - start
    return _figures(elapsed, next(line["loss"] for line in trainer.state.log_history if "loss" in line), PAIRS)


def _figures(elapsed: float, first_loss: float, done: float) -> dict[str, float]:
    return {"pairs_per_second": done / elapsed, "peak_gigabytes": peak_gigabytes(), "first_loss": first_loss}


def compare(found: dict[str, dict[str, float]]) -> None:
    """Ratios to DPOTrainer as it comes, and to the fastest way to run it."""
    mine, plain = found["ours"], found["plain"]
    fastest = max(TRL, key=lambda side: found[side]["pairs_per_second"])
    report(
        "train_dpo",
        **found,
        fastest=fastest,
        ratio=round(mine["pairs_per_second"] / plain["pairs_per_second"], 2),
        ratio_to_fastest=round(mine["pairs_per_second"] / found[fastest]["pairs_per_second"], 2),
        memory=round(mine["peak_gigabytes"] / plain["peak_gigabytes"], 2),
    )


if __name__ == "__main__":
    main()
