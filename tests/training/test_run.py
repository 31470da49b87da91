"""A run from its recipe to a model that others open; killed, stopped and gone on with."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from intaglio.checkpoints.models import load_model, load_tokenizer
from intaglio.errors import UserError
from intaglio.fetch import claimed
from intaglio.training.preview import preview
from intaglio.training.recipe import load_recipe
from intaglio.training.run import resume, train


@pytest.fixture(autouse=True, scope="module")
def quick() -> None:
    """Pictures are drawn here, as always."""


LAYER = {
    "repeat": 2,
    "norm": {"kind": "rms_norm"},
    "attention": {"num_heads": 4, "num_kv_heads": 2, "rope": {}},
    "feed_forward": {"intermediate_size": 48, "activation": "silu", "gated": True},
}
WORDS = "the sea takes what the river brings and gives it back as rain over every hill and field".split()


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe of a tiny model on texts of our own."""
    rows = [{"text": " ".join(WORDS[(i * k) % len(WORDS)] for k in range(3, 14 + i % 9))} for i in range(160)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = {
        "architecture": {"hidden_size": 32, "max_position_embeddings": 64, "layers": [LAYER]},
        "tokenizer": {"vocab_size": 300},
        "data": str(tmp_path / "rows.jsonl"),
        "validation": 0.1,
        "max_length": 48,
        "micro_batch": 2,
        "accumulation": 2,
        "steps": 24,
        "optimizer": {"learning_rate": 0.01},
        "evaluate_every": 8,
        "save_every": 4,
        "sample_every": 12,
        "prompts": ["the sea"],
        "sample_tokens": 5,
        "neftune": 5.0,
        "threads": 1,
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def quiet(line: str) -> None:
    """Says nothing."""


def run_to(recipe: Path, out: Path, *changes: str) -> Path:
    train(load_recipe(recipe, list(changes)), out, say=quiet, quiet=True)
    return out


def command(*arguments: object) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "intaglio.cli.main", "train", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def wait_for(path: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} never came"
        time.sleep(0.01)


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"step-{step:08d}" / "weights.safetensors")


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in map(json.loads, (run / "log.jsonl").read_text().splitlines()) if "loss" in line]


def assert_same_end(run: Path, other: Path, step: int) -> None:
    ours, theirs = weights(run, step), weights(other, step)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert losses(run) == losses(other)
    assert (run / "model" / "model.safetensors").read_bytes() == (other / "model" / "model.safetensors").read_bytes()


def test_a_run_leaves_a_model_that_transformers_opens(recipe: Path, tmp_path: Path) -> None:
    run = run_to(recipe, tmp_path / "run")
    found = losses(run)
    assert len(found) == 24
    assert found[-1] < 0.6 * found[0]
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert {"loss", "grad_norm", "learning_rate", "tokens_per_second", "mfu", "peak_memory_bytes"} <= lines[0].keys()
    assert [line["step"] for line in lines if "eval_loss" in line] == [8, 16, 24]
    assert [line["step"] for line in lines if "sample" in line] == [12, 24]
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000020", "step-00000024"]

    from transformers import AutoModelForCausalLM, AutoTokenizer

    ours, theirs = load_model(run / "model", dtype="float32"), AutoModelForCausalLM.from_pretrained(run / "model")
    ids = load_tokenizer(run / "model").encode("the sea takes")
    assert AutoTokenizer.from_pretrained(run / "model")("the sea takes")["input_ids"] == ids
    with torch.no_grad():
        logits = theirs.float()(torch.tensor([ids])).logits
        torch.testing.assert_close(ours(torch.tensor([ids])), logits, rtol=1e-4, atol=1e-4)


def test_killed_at_any_moment_it_goes_on_to_the_same_end(recipe: Path, tmp_path: Path) -> None:
    whole = run_to(recipe, tmp_path / "whole")
    process = command(recipe, f"out={tmp_path / 'killed'}")
    wait_for(tmp_path / "killed" / "checkpoints" / "step-00000008")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    resume(tmp_path / "killed", say=quiet, quiet=True)
    assert_same_end(tmp_path / "killed", whole, 24)


def test_told_to_stop_it_saves_and_says_how_to_go_on(recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "stopped"
    process = command(recipe, f"out={run}", "steps=4000", "save_every=0", "evaluate_every=0", "sample_every=0")
    wait_for(run / "log.jsonl")
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert f"intaglio train --resume {run}" in err
    assert out.strip() == str(run / "model")
    assert "Traceback" not in err
    assert len(list((run / "checkpoints").iterdir())) == 1


def test_without_a_checkpoint_it_starts_again(recipe: Path, tmp_path: Path) -> None:
    whole = run_to(recipe, tmp_path / "whole", "steps=6")
    again = tmp_path / "again"
    run_to(recipe, again, "steps=6")
    for path in sorted((again / "checkpoints").iterdir()):
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    resume(again, say=quiet, quiet=True)
    assert_same_end(again, whole, 6)


def test_a_run_is_not_written_over(recipe: Path, tmp_path: Path) -> None:
    run = run_to(recipe, tmp_path / "run", "steps=2")
    with pytest.raises(UserError, match="--resume"):
        run_to(recipe, run, "steps=2")


def test_two_processes_do_not_train_one_run(recipe: Path, tmp_path: Path) -> None:
    run = run_to(recipe, tmp_path / "run", "steps=2")
    with claimed(run / ".lock"), pytest.raises(UserError, match="another process is at work here"):
        resume(run, say=quiet, quiet=True)
    resume(run, say=quiet, quiet=True)


def test_it_ends_when_nothing_improves(recipe: Path, tmp_path: Path) -> None:
    run = run_to(recipe, tmp_path / "run", "patience=1", "evaluate_every=1", "optimizer.learning_rate=3.0", "neftune=0")
    done = len(losses(run))
    assert done < 24
    assert (run / "best" / "model.safetensors").exists()
    said: list[str] = []
    assert resume(run, say=said.append, quiet=True).steps == done
    assert f"this run has ended at step {done}, and does not step on" in said
    assert len(losses(run)) == done


@pytest.mark.parametrize(
    "changes",
    [
        ["checkpointing=1"],
        ["checkpointing=selective"],
        ["packing=contiguous"],
        ["packing=none"],
        ["precision=float32"],
        ["optimizer.kind=muon"],
    ],
)
def test_options_train_too(recipe: Path, tmp_path: Path, changes: list[str]) -> None:
    found = losses(run_to(recipe, tmp_path / "run", *changes, "steps=12", "sample_every=0"))
    assert found[-1] < 0.9 * found[0]


def test_recomputed_activations_change_nothing(recipe: Path, tmp_path: Path) -> None:
    plain = run_to(recipe, tmp_path / "plain", "steps=4", "neftune=0", "precision=float32")
    less = run_to(recipe, tmp_path / "less", "steps=4", "neftune=0", "precision=float32", "checkpointing=1")
    assert losses(less) == pytest.approx(losses(plain), rel=1e-6)


def test_epochs_are_steps(recipe: Path, tmp_path: Path) -> None:
    run = run_to(recipe, tmp_path / "run", "steps=null", "epochs=1", "sample_every=0")
    rows = json.loads((run / "checkpoints" / f"step-{len(losses(run)):08d}" / "state.json").read_text())["cursor"][
        "rows"
    ]
    assert len(losses(run)) == round(rows / 4)


def test_a_dry_run_shows_and_writes_nothing(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(tmp_path.iterdir())
    preview(load_recipe(recipe, ["optimizer.learning_rate=1e-4"]))
    out = capsys.readouterr().out
    assert "learning_rate: 0.0001" in out
    assert "parameters" in out
    assert out.count("of them targets") == 2
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["stepz=3"], ["stepz", "steps"]),
        (["optimizer.learning_rat=3"], ["learning_rat", "learning_rate"]),
        (["epochs=1"], ["steps or epochs"]),
        (["model=x"], ["model", "architecture"]),
        (["tokenizer=null"], ["tokenizer"]),
        (["schedule.kind=square"], ["schedule.kind"]),
        (["micro_batch=0"], ["micro_batch"]),
        (["nonsense"], ["key=value"]),
        (["precision=float16"], ["float16", "cuda", "bfloat16"]),
        (["checkpointing=selectiv"], ["checkpointing", "selective"]),
        (["checkpointing=selective", "compile=true"], ["compile", "selective"]),
        (["streaming=true", "steps=null", "epochs=1"], ["streaming", "steps"]),
        (["streaming=true", "yardsticks=true"], ["yardsticks", "streaming"]),
        (["streaming=true", "split_by=file"], ["split_by file", "streaming"]),
        (["streaming=true", "data=[{path: x, cap: 3}]"], ["streaming", "one source"]),
        (["prompts=null", "sample_every=3"], ["prompts"]),
    ],
)
def test_a_wrong_recipe_is_one_line(recipe: Path, changes: list[str], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe(recipe, changes)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_missing_data_is_named_and_leaves_no_run(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        run_to(recipe, tmp_path / "run", "data=/nowhere/at/all.jsonl")
    assert losses(run_to(recipe, tmp_path / "run", "steps=1", "sample_every=0"))


def test_a_loss_that_is_not_finite_tells_what_is_safe(recipe: Path, tmp_path: Path) -> None:
    changes = [
        "optimizer.learning_rate=1e30",
        "clip=0",
        "steps=8",
        "save_every=1",
        "sample_every=0",
        "evaluate_every=0",
    ]
    with pytest.raises(UserError, match=r"not finite.*the last good checkpoint is .*step-0000000\d") as caught:
        run_to(recipe, tmp_path / "run", *changes)
    assert "rows.jsonl:" in str(caught.value)


def test_a_machine_without_cuda_is_one_line(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no CUDA device"):
        run_to(recipe, tmp_path / "run", "device=cuda", "precision=float16")
    assert not (tmp_path / "run").exists()


def test_tensorboard_is_an_option(recipe: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = run_to(recipe, tmp_path / "run", "tensorboard=true", "steps=2", "sample_every=0")
    assert [path.stat().st_size > 0 for path in (run / "tensorboard").glob("events.*")] == [True]


def test_without_matplotlib_only_the_picture_is_missing(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said: list[str] = []
    outcome = train(load_recipe(recipe, ["steps=1", "sample_every=0"]), tmp_path / "run", say=said.append, quiet=True)
    assert outcome.steps == 1
    assert any("matplotlib is missing" in line for line in said)
    assert not (tmp_path / "run" / "curves.png").exists()
