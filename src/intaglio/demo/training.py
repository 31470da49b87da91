"""The stages that train: from nothing, on chats, on preferences; what adapters have learned is merged."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from intaglio.demo.data import PAIRS
from intaglio.demo.stage import Desk, Found
from intaglio.files import read_json
from intaglio.training.log import read_log

if TYPE_CHECKING:
    from intaglio.adapters.merge import MergeReport

__all__ = ["compared", "last", "merge", "prefer", "prefer_recipe", "pretrain", "pretrain_recipe", "tune", "tune_recipe"]

_ADAPTER: Final = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"}


def pretrain(desk: Desk) -> Found:
    """A model of three million parameters on the standard library's source, from nothing."""
    run = _trained(desk, "pretrain", pretrain_recipe(desk))
    samples = [line["prompt"] + line["sample"] for line in read_log(run / "log.jsonl") if "sample" in line]
    yardsticks = read_json(run / "report.json")["yardsticks"]
    return {"bits_per_byte": last(run, "eval_bits_per_byte"), **yardsticks, "samples": samples, "run": str(run)}


def pretrain_recipe(desk: Desk) -> dict[str, Any]:
    """What `pretrain` runs; held-out files are none that it trains on."""
    layer = {
        "repeat": 4,
        "norm": {"kind": "rms_norm"},
        "attention": {"num_heads": 4, "num_kv_heads": 2, "rope": {}},
        "feed_forward": {"intermediate_size": 688, "activation": "silu", "gated": True},
    }
    steps = desk.sized(150, 45)
    return {
        "architecture": {
            "hidden_size": 256,
            "max_position_embeddings": 512,
            "tie_embeddings": True,
            "layers": [layer],
        },
        "tokenizer": {"vocab_size": 2048},
        "data": "stdlib",
        "split_by": "file",
        "validation": 0.02,
        "packing": "contiguous",
        "max_length": 512,
        "micro_batch": 4,
        "steps": steps,
        "optimizer": {"kind": "muon", "learning_rate": 3e-3},
        "schedule": {"kind": "linear", "warmup": 15},
        "evaluate_every": steps,
        "sample_every": steps,
        "prompts": ["def read_lines(path):"],
        "yardsticks": True,
        "threads": desk.threads,
    }


def tune(desk: Desk) -> Found:
    """An adapter beside the pulled model learns to say whether a headline is sarcastic; then it becomes part of it."""
    run = _trained(desk, "tune", tune_recipe(desk))
    return {"eval_loss": last(run, "eval_loss"), **_merged(desk, desk.found["pull"]["path"], run, "tune")}


def tune_recipe(desk: Desk) -> dict[str, Any]:
    """What `tune` runs."""
    steps = desk.sized(70, 20)
    return {
        "model": desk.found["pull"]["path"],
        "adapter": _ADAPTER,
        "data": desk.found["pull"]["tuning"],
        "supervise": "assistant",
        "validation": 0.1,
        "max_length": 256,
        "micro_batch": 4,
        "steps": steps,
        "optimizer": {"kind": "adamw", "learning_rate": 1e-3, "weight_decay": 0.0},
        "schedule": {"kind": "linear", "warmup": 5, "final": 0.0},
        "evaluate_every": steps,
        "threads": desk.threads,
    }


def prefer(desk: Desk) -> Found:
    """A second adapter, on top of the first, learns by DPO to find a serious headline likelier than a sarcastic one."""
    run = _trained(desk, "prefer", prefer_recipe(desk))
    pairs = read_json(run / "report.json")["pairs"]
    return {**{name: pairs[name] for name in ("rows", "before", "after", "gain")}, "run": str(run)}


def prefer_recipe(desk: Desk) -> dict[str, Any]:
    """What `prefer` runs; its reference is the adapter switched off."""
    return {
        "model": desk.found["tune"]["path"],
        "objective": {"kind": "dpo", "beta": 0.1},
        "adapter": _ADAPTER,
        "data": PAIRS,
        "validation": 0.05,
        "max_length": 128,
        "micro_batch": 4,
        "steps": desk.sized(40, 12),
        "optimizer": {"kind": "adamw", "learning_rate": 4e-4, "weight_decay": 0.0},
        "schedule": {"kind": "linear", "warmup": 4, "final": 0.0},
        "pairs": {"rows": desk.sized(200, 80)},
        "threads": desk.threads,
    }


def merge(desk: Desk) -> Found:
    """The second adapter becomes part of the model too; what was written is compared with what it was made of."""
    return _merged(desk, desk.found["tune"]["path"], Path(desk.found["prefer"]["run"]), "merge")


def _merged(desk: Desk, base: str, run: Path, stage: str) -> Found:
    from intaglio.adapters.merge import merge_directories

    out = desk.folder / stage / "model"
    if out.exists():  # written by a demo that was stopped before it could say so
        shutil.rmtree(out)
    return {"path": str(out), **compared(merge_directories(base, run / "adapter", out))}


def compared(report: "MergeReport") -> Found:
    """The largest difference of a logit, and the share of places whose likeliest token is the same."""
    return {"max_difference": report.max_difference, "same_choice": report.same_choice / report.tokens}


def last(run: Path, name: str) -> float:
    """What a run's log says of a number at the end."""
    return float([line[name] for line in read_log(run / "log.jsonl") if name in line][-1])


def _trained(desk: Desk, stage: str, recipe: dict[str, Any]) -> Path:
    """The run's folder, once it is trained; what was begun there is gone on with."""
    from intaglio.specs import validate
    from intaglio.training.recipe import Recipe
    from intaglio.training.run import finish

    run = desk.folder / stage / "run"
    finish(validate(Recipe, recipe, f"demo: {stage}"), run, say=lambda line: desk.say(f"    {line}"))
    return run
