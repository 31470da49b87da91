"""A run goes on as if nothing had been: after a rank was killed, and on more ranks or fewer than it began with."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from intaglio.errors import UserError
from intaglio.parts.block import Block
from intaglio.training.recipe import load_recipe
from intaglio.training.run import resume, train
from ranks import run_ranks
from running import unmeasured

LAYER = {
    "repeat": 2,
    "norm": {"kind": "rms_norm"},
    "attention": {"num_heads": 4, "num_kv_heads": 2, "rope": {}},
    "feed_forward": {"intermediate_size": 48, "activation": "silu", "gated": True},
}
STEPS = 6


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model; what it computes in fp32 is the same on one rank and on two, but for the last digits."""
    tmp_path = tmp_path_factory.mktemp("recipe")
    rows = [{"text": " ".join("abcdefgh"[(i * k) % 8] for k in range(3, 14 + i % 9))} for i in range(60)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = {
        "architecture": {"hidden_size": 32, "max_position_embeddings": 64, "layers": [LAYER]},
        "tokenizer": {"kind": "characters"},
        "data": str(tmp_path / "rows.jsonl"),
        "validation": 0,
        "max_length": 48,
        "precision": "float32",
        "micro_batch": 2,
        "steps": STEPS,
        "save_every": 2,
        "evaluate_every": 0,
        "threads": 1,
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def alone(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run, uninterrupted, in one process."""
    run = tmp_path_factory.mktemp("alone") / "run"
    train(load_recipe(recipe, ["accumulation=2"]), run, say=lambda line: None, quiet=True)
    return run


def assert_ended_as(run: Path, other: Path) -> None:
    """The same losses, step by step, and the same model."""
    ours, wanted = losses(run), losses(other)
    assert list(ours) == list(range(1, STEPS + 1))
    assert ours == pytest.approx(wanted, rel=1e-5)
    made, alone = (load_file(one / "model" / "model.safetensors") for one in (run, other))
    assert made.keys() == alone.keys()
    assert all(torch.allclose(made[name], tensor, atol=1e-5) for name, tensor in alone.items())


def losses(run: Path) -> dict[int, float]:
    """What the log says of every step; a step that is told twice would be wrong."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    told = [line["step"] for line in lines if "loss" in line]
    assert told == sorted(set(told))
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def ended(line: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """A command's status and what it said on standard error; all that it started ends with it."""
    pipe = subprocess.PIPE
    with subprocess.Popen(line, env=environment, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            said = process.communicate(timeout=500)[1]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, said


@pytest.mark.prove
def test_a_killed_rank_costs_a_restart_and_nothing_else(recipe: Path, alone: Path, tmp_path: Path) -> None:
    dying = Path(__file__).parents[1] / "dying_rank.py"
    run, died = tmp_path / "run", tmp_path / "died"
    changes = ["parallel.dp=2", "parallel.zero=2"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3"]
    line = [sys.executable, *torchrun, str(dying), "train", str(recipe), f"out={run}", *changes, "--go-on"]
    environment = {**os.environ, "DIES_AT": "4", "DIES_ON": "1", "DIED": str(died), "OMP_NUM_THREADS": "1"}
    status, said = ended(line, environment)
    assert status == 0, said[-3000:]
    assert died.exists()
    assert "resumed at step 2" in said
    assert "rank 1 did not come to step 4" in said
    assert_ended_as(run, alone)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000004", "step-00000006"]


def until(step: int, recipe: Path, run: Path, *changes: str) -> int:
    """Goes on with a run on the ranks that there are, and is told to stop amid a step; how many it has done."""
    asked = load_recipe(recipe, list(changes))
    forwards, first = count(1), list[nn.Module]()

    def stop(module: nn.Module, args: Any) -> None:
        if not isinstance(module, Block) or not torch.is_grad_enabled():
            return
        first.append(module)
        if module is first[0] and next(forwards) == step * asked.accumulation:
            os.kill(os.getpid(), signal.SIGTERM)

    hook = register_module_forward_pre_hook(stop)
    with pytest.MonkeyPatch.context() as patch:
        unmeasured(patch)
        begun = (run / "recipe.yaml").exists()
        go_on = partial(resume, run, recipe=asked) if begun else partial(train, asked, run)
        outcome = go_on(say=lambda line: None, quiet=True)
    hook.remove()
    return outcome.steps


def test_a_run_goes_on_with_any_number_of_ranks(recipe: Path, alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert until(2, recipe, run, "accumulation=2") == 2
    layout = ("parallel.dp=2", "parallel.zero=3", "parallel.background_saves=true")
    assert run_ranks(2, until, 2, recipe, run, *layout, join=False) == [4, 4]
    assert run_ranks(2, until, 1, recipe, run, "parallel.pp=2", "accumulation=2", join=False) == [5, 5]
    assert until(99, recipe, run, "accumulation=2") == STEPS
    assert_ended_as(run, alone)


def test_another_recipe_is_another_run(recipe: Path, alone: Path) -> None:
    with pytest.raises(UserError, match="has another recipe"):
        resume(alone, recipe=load_recipe(recipe, ["max_length=40"]))
