"""`intaglio train`: from the command line to a run, and every refusal in one line."""

import json
from pathlib import Path

import pytest
import yaml

from out_of_memory import short
from running import Run
from toy_llms import save_toy


@pytest.fixture(scope="module")
def toy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture
def recipe(tmp_path: Path, toy_model: Path) -> Path:
    rows = [{"prompt": f"question {i}", "completion": f"answer {i}"} for i in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"model": str(toy_model), "data": str(tmp_path / "rows.jsonl"), "validation": 0.3, "steps": 2, "threads": 1}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(data))
    return tmp_path / "recipe.yaml"


def test_it_trains_and_goes_on(run: Run, recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    ran = run("train", recipe, f"out={out}", "max_length=64", "--json")
    assert ran.status == 0, ran.err
    report = json.loads(ran.out)
    assert report["steps"] == 2
    assert report["run"] == str(out)
    assert "12 prompt_completion" in ran.err
    again = run("train", "--resume", out)
    assert again.status == 0, again.err
    assert again.out.strip() == str(out / "model")


def test_memory_that_runs_out_is_one_line(run: Run, recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with short(after=3):  # two layers, a step and a half
        ran = run("train", recipe, f"out={out}", "max_length=64", "save_every=1", "micro_batch=2")
    assert (ran.status, ran.out) == (2, "")
    last = ran.err.splitlines()[-1]
    assert last.startswith("intaglio: memory ran out after 1 step (")
    assert "Traceback" not in ran.err
    again = last.partition("go on with: intaglio ")[2].split()
    assert run(*again).status == 0
    assert (out / "model" / "model.safetensors").exists()


def test_a_dry_run_shows_samples_memory_and_cost(run: Run, recipe: Path, tmp_path: Path) -> None:
    ran = run("train", recipe, "--dry-run", "max_length=64")
    assert ran.status == 0, ran.err
    assert "optimizer states" in ran.out
    assert "most of it is " in ran.out
    assert "checkpointing=1 gains " in ran.out
    assert "peak" in ran.out
    assert "question 0answer 0<|im_end|>" in ran.out.replace("\n", "")
    assert not (tmp_path / "run").exists()


def test_a_dry_run_counts_the_tokens_of_all_ranks(run: Run, recipe: Path) -> None:
    of_one = run("train", recipe, "--dry-run", "max_length=64", "micro_batch=2", "accumulation=3")
    of_all = run("train", recipe, "--dry-run", "max_length=64", "micro_batch=2", "accumulation=3", "parallel.dp=4")
    assert "384 tokens a step at most" in of_one.out
    assert "1,536 tokens a step at most" in of_all.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{recipe}"], ["out=DIR"]),
        (["{recipe}", "out={out}", "stepz=1"], ["stepz", "steps"]),
        (["{recipe}", "out={out}", "model=nobody-knows"], ["nobody-knows"]),
        (["missing.yaml", "out={out}"], ["missing.yaml"]),
        (["--resume", "{out}"], ["recipe.yaml"]),
        (["{recipe}", "--resume", "{out}"], ["--resume"]),
        ([], ["recipe"]),
    ],
)
def test_refusals(run: Run, recipe: Path, tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    ran = run("train", *[part.format(recipe=recipe, out=tmp_path / "run") for part in arguments])
    assert all(word in ran.refusal for word in words), ran.err
    assert not (tmp_path / "run" / "checkpoints").exists()
