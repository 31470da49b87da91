"""`intaglio train` on a file of stages: shown, run, gone on with by the same command or by --resume, and refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from intaglio.training.stages import runs as stage_runs
from running import Run, unmeasured
from toy_stages import RECIPE, toy_changes


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    unmeasured(monkeypatch)


@pytest.fixture
def two_stages(tmp_path: Path) -> Path:
    """A model of ours, and what it is taught."""
    layer = {
        "norm": {"kind": "rms_norm"},
        "attention": {"num_heads": 2, "rope": {}},
        "feed_forward": {"intermediate_size": 16, "activation": "silu", "gated": True},
    }
    rows = [{"prompt": f"question {i}: ", "completion": f"answer {i}"} for i in range(12)]
    texts = [{"text": row["prompt"] + row["completion"]} for row in rows]
    asked = [{"prompt": row["prompt"]} for row in rows]
    for name, some in {"texts": texts, "told": rows, "asked": asked}.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    data = {
        "precision": "float32",
        "threads": 1,
        "max_length": 32,
        "validation": 0.3,
        "steps": 1,
        "evaluate_every": 0,
        "stages": {
            "base": {
                "architecture": {"hidden_size": 8, "max_position_embeddings": 32, "layers": [layer]},
                "tokenizer": {"vocab_size": 280},
                "data": str(tmp_path / "texts.jsonl"),
            },
            "taught": {"model": {"stage": "base"}, "data": str(tmp_path / "told.jsonl")},
        },
        "report": {"prompts": str(tmp_path / "asked.jsonl"), "baseline": "base", "max_tokens": 3, "samples": 1},
    }
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(data))
    return tmp_path / "two.yaml"


def test_it_runs_all_and_goes_on(run: Run, two_stages: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = run("train", two_stages, f"out={out}", "taught.steps=2", "--json")
    assert ran.status == 0, ran.err
    told: dict[str, Any] = json.loads(ran.out)
    assert told["run"] == str(out)
    assert [told["stages"][name]["steps"] for name in ("base", "taught")] == [1, 2]
    assert [*told["report"]["stages"]] == ["base", "taught"]
    assert "stage 2 of 2, taught" in ran.err
    for again in (run("train", "--resume", out), run("train", two_stages, f"out={out}", "taught.steps=2")):
        assert again.status == 0, again.err
        assert "stage 2 of 2, taught: done" in again.err
        assert "KL from base" in again.out
        assert again.out.rstrip().endswith(str(out))


def test_a_dry_run_shows_every_stage_and_makes_nothing(run: Run, tmp_path: Path) -> None:
    changes = [change for change in toy_changes(tmp_path) if not change.startswith("report.")]
    ran = run("train", RECIPE, "--dry-run", *changes)
    assert ran.status == 0, ran.err
    shown = ran.out.replace("\n", "")
    for number, name in enumerate(("pretrain", "sft", "reward", "ppo", "dpo"), 1):
        assert f"stage {number} of 5, {name}" in shown
    assert "stage: reward" in shown
    assert "optimizer states" in shown
    assert "about river:" in shown
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_stopped_it_says_how_to_go_on(
    run: Run, two_stages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*rest: Any, **how: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stage_runs, "finish", stop)
    ran = run("train", two_stages, f"out={tmp_path / 'out'}")
    assert ran.status == 130
    assert f"go on with: intaglio train --resume {tmp_path / 'out'}" in ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{recipe}"], ["out=DIR"]),
        (["{recipe}", "out={out}", "taught.stepz=1"], ["two.yaml: taught", "stepz", "steps"]),
        (["{recipe}", "out={out}", "tought.steps=1"], ["tought", "taught"]),
        (["{recipe}", "out={out}", "taught.data=nowhere.jsonl"], ["nowhere.jsonl"]),
    ],
)
def test_refusals(run: Run, two_stages: Path, tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    ran = run("train", *[part.format(recipe=two_stages, out=tmp_path / "out") for part in arguments])
    assert ran.status == 2
    last = ran.err.splitlines()[-1]
    assert last.startswith("intaglio: ")
    assert all(word in last for word in words), ran.err
