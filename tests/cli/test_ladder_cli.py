"""`intaglio ladder`: what is asked for, and tables and verdicts as text and as JSON."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from intaglio.atlas import history, rivals
from intaglio.atlas.findings import Finding
from intaglio.atlas.gradients import Gradients
from intaglio.atlas.ladder import QUICK
from intaglio.atlas.scaling import FULL_SCALING, QUICK_SCALING
from running import Run


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One group of claims, at the smallest size."""
    monkeypatch.setattr(history, "QUICK", (Gradients((2, 24), hidden_size=16, sequences=3),))
    monkeypatch.setattr(history, "FULL", (Gradients((2, 12), hidden_size=16, sequences=3),))


def test_each_claim_has_a_verdict_in_words(run: Run, tmp_path: Path) -> None:
    ran = run("ladder", "history", "--quick", "--out", tmp_path)
    assert ran.status == 0, ran
    assert "\nshown: RNN, scale 0.5: vanishes to less than a thousandth from 2 to 24 tokens (" in ran.out
    assert "\nthe other way round: " in ran.out
    assert f"{tmp_path / 'gradients.png'}\n" in ran.out
    assert ran.err.startswith("gradients 1/21: RNN, scale 0.5, seed 0\n")
    assert run("ladder", "history", "--quick", "--out", tmp_path).err == ""


def test_json_has_the_same(run: Run, tmp_path: Path) -> None:
    report = json.loads(run("ladder", "history", "--quick", "--out", tmp_path, "--json").out)
    shown = {verdict["claim"]: verdict["shown"] for verdict in report["gradients"]["verdicts"]}
    assert len(shown) == 6
    assert shown["RNN, scale 0.5: vanishes to less than a thousandth from 2 to 24 tokens"]
    assert report["gradients"]["table"][0]["model"] == "RNN, scale 0.5"


def test_a_folder_of_another_size_is_refused(run: Run, tmp_path: Path) -> None:
    run("ladder", "history", "--quick", "--out", tmp_path)
    ran = run("ladder", "history", "--out", tmp_path)
    assert ran.refusal.startswith(f"intaglio: {tmp_path / 'gradients.json'}: holds measurements of another size")


def test_recipes_are_compared_by_what_the_command_line_says(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[rivals.Rivals] = []

    def climb(size: list[rivals.Rivals], folder: Path, say: object, jobs: int = 1) -> dict[str, Finding]:
        asked.extend(size)
        return {"compare": Finding("a title", ("recipe",), [("attention-dates",)], [], {}, "tokens")}

    monkeypatch.setattr(history, "climb", climb)
    recipes = ("recipes/seq2seq-dates.yaml", "recipes/attention-dates.yaml")
    ran = run("ladder", "compare", *recipes, "steps=10", "--rate", "1e-3", "--rate", "3e-3", "--seeds", 2)
    assert "a title\n\nrecipe\nattention-dates\n" in ran.out
    assert asked == [rivals.Rivals(recipes, rates=(1e-3, 3e-3), changes=("steps=10",), seeds=2)]


def test_a_recipe_that_answers_nothing_is_refused(run: Run, tmp_path: Path) -> None:
    ran = run("ladder", "compare", "recipes/rnn-lm.yaml", "recipes/gru-lm.yaml", "--out", tmp_path)
    assert ran.refusal.startswith("intaglio: recipes/rnn-lm.yaml: a recipe to be compared has `steps` and takes")


def test_the_ladder_lists_its_rungs(run: Run) -> None:
    ran = run("ladder", "--list")
    lines = ran.out.splitlines()
    assert lines[0].startswith('post-norm: GPT-1 (post-norm): placement="post", norm={"kind": "layer_norm"}')
    assert 'pre-norm: pre-norm (GPT-2), from post-norm: placement="pre"' in lines
    swapped = run("ladder", "--list", "--json", "--only", "swiglu", "--swap", "feed_forward.activation=relu2")
    assert json.loads(swapped.out) == [
        {
            "name": "rotary",
            "title": "rotary positions",
            "from": "pre-norm",
            "set": {"model.positions": None, "attention.rope": {}},
        },
        {
            "name": "swiglu",
            "title": "SwiGLU with feed_forward.activation=relu2",
            "from": "rotary",
            "set": {"feed_forward.activation": "relu2", "feed_forward.gated": True},
        },
    ]


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        (("--only", "swigul"), "intaglio: --only: unknown rung 'swigul'; did you mean swiglu?"),
        (("--swap", "placement"), "intaglio: command line: not key=value: 'placement'"),
        (("--swap", "dropout=0.1"), "intaglio: --swap: no rung changes 'dropout'; known: "),
    ],
)
def test_what_no_rung_has_is_refused(run: Run, tmp_path: Path, options: tuple[str, str], refusal: str) -> None:
    assert run("ladder", "--quick", *options, "--out", tmp_path).refusal.startswith(refusal)
    assert not any(tmp_path.iterdir())


def test_the_ladder_is_climbed_as_the_command_line_says(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, Path, int]] = []

    def climb(size: list[object], folder: Path, say: object, jobs: int) -> dict[str, Finding]:
        asked.extend((one, folder, jobs) for one in size)
        return {}

    monkeypatch.setattr(history, "climb", climb)
    monkeypatch.chdir(tmp_path)
    run("ladder", "--quick", "--swap", "placement=residual", "--only", "pre-norm", "--jobs", 3)
    run("ladder", "scaling", "--quick", "--jobs", 2)
    run("ladder", "scaling", "--out", tmp_path, "--jobs", 1)
    ladder = replace(QUICK, swaps=("placement=residual",), only=("pre-norm",))
    folder = Path("ladder-quick")
    assert asked == [(ladder, folder, 3), (QUICK_SCALING, folder, 2), (FULL_SCALING, tmp_path, 1)]
