"""`intaglio plan --fit`, `--timeline` and times as a user meets them."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from intaglio.specs.parallel import ParallelSpec
from running import Run

GIVEN = ("--sequence", 1024, "--gpus", 8, "--micro-batch", 2)


def test_it_finds_a_layout_and_writes_it(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "found.yaml"
    ended = run("plan", "smollm2-135m", "--fit", *GIVEN, "--sequences", 64, "--out", out, "--json")
    assert ended.status == 0, ended
    found = json.loads(ended.out)
    data = yaml.safe_load(out.read_text())
    layout = ParallelSpec.model_validate(data["parallel"])
    assert layout.world == 8
    assert data["micro_batch"] == 2
    assert data["accumulation"] * 2 * layout.dp == 64
    assert found["winner"]["parallel"] == data["parallel"]
    assert found["winner"]["bytes"] <= found["device"]["memory_bytes"]
    assert found["winner"]["time"]["seconds"] <= found["second"]["time"]["seconds"]
    assert sum(found["winner"]["time"]["parts"].values()) == pytest.approx(found["winner"]["time"]["seconds"])


def test_what_is_given_is_kept_and_words_say_why(run: Run) -> None:
    ended = run("plan", "smollm2-135m", "--fit", *GIVEN, "--zero", 2, "--tp", 1, "--pp", 1, "--checkpointing", 0)
    assert ended.status == 0, ended
    assert "Fastest that fits: dp 8, zero 2; 2 sequences at a time" in ended.out
    assert "tokens a second" in ended.out
    assert "Its time goes to" in ended.out
    assert "parallel:" in ended.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--fit",), "--fit: how many devices?"),
        (("--fit", "--gpus", 7, "--tp", 2), "no layout of 7 devices"),
        (("--fit", "--gpus", 8, "--device", "t4", "--sequence", 8192, "--micro-batch", 64), "none of"),
        (("--gpus", 2, "--timeline", "x.svg"), "one stage has no timeline"),
        (("--fit", "--gpus", 2, "--offload"), "--offload: the search knows no offloading"),
        (("--fit", "--gpus", 2, "--sequences", 8, "--accumulation", 2), "--accumulation: follows from --sequences"),
        (("--fit", "--gpus", 2, "--plot", "x.png"), "--plot: draws one layout's memory"),
    ],
)
def test_mistakes_are_one_line(run: Run, options: tuple[object, ...], words: str) -> None:
    ended = run("plan", "smollm2-135m", *options)
    assert ended.status == 2
    assert words in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_pipeline_is_drawn(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.svg"
    options = ("--gpus", 4, "--pp", 4, "--schedule", "zbv_zero_bubble", "--accumulation", 8, "--timeline", file)
    ended = run("plan", "smollm2-135m", *options, "--json")
    assert ended.status == 0, ended
    text = file.read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "zbv_zero_bubble: 4 ranks, 8 micro-batches, bubble" in text
    assert 0 < json.loads(ended.out)["time"]["bubble"] < 0.5


def test_the_winners_pipeline_is_drawn(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "found.svg"
    options = ("--gpus", 4, "--pp", 2, "--micro-batch", 1, "--sequences", 16, "--sequence", 512, "--timeline", file)
    ended = run("plan", "smollm2-135m", "--fit", *options)
    assert ended.status == 0, ended
    assert "bubble" in file.read_text()


def test_a_plan_says_how_long_a_step_takes(run: Run) -> None:
    ended = run("plan", "llama3.1-8b", "--gpus", 8, "--micro-batch", 2, "--sequence", 4096)
    assert "A step of 65,536 tokens takes" in ended.out
    assert "MFU" in ended.out
