"""`intaglio ladder history`: tables and verdicts as text and as JSON."""

import json
from pathlib import Path

import pytest

from intaglio.atlas import history, rivals
from intaglio.atlas.findings import Finding
from intaglio.atlas.gradients import Gradients
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
    assert "\nnot shown: " in ran.out
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

    def climb(size: list[rivals.Rivals], folder: Path, say: object) -> dict[str, Finding]:
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
