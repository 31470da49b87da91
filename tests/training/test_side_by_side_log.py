"""A policy beside the model it began as: the same at first, apart afterwards; prompts, judges, and what it began as."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from intaglio.checkpoints.models import load_model, load_tokenizer
from intaglio.models.decoder import Decoder
from intaglio.specs import validate
from intaglio.training.adapting import adapt
from intaglio.training.measuring.side_by_side import SideBySide
from intaglio.training.recipe import Recipe
from intaglio.training.stages.pages import report_lines
from toy_llms import save_toy
from toy_models import user_error

JUDGE = "def letters(prompts, completions, **columns):\n    return [float(len(text)) for text in completions]\n"


class Told:
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.said: list[str] = []

    def line(self, **values: Any) -> None:
        self.lines.append(values)

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("side-by-side")
    save_toy(folder / "toy")
    rows = [{"prompt": f"about {i}: ", "chosen": "yes", "rejected": "no"} for i in range(6)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    (folder / "judge.py").write_text(JUDGE)
    return folder


def recipe(folder: Path, **changes: Any) -> Recipe:
    fields = {
        "model": str(folder / "toy"),
        "data": str(folder / "pairs.jsonl"),
        "objective": {"kind": "dpo"},
        "precision": "float32",
        "steps": 4,
        "sample_every": 2,
        "sample_tokens": 5,
        "compare": {"shown": 2, "rewards": [{"function": f"{folder}/judge.py:letters"}]},
    }
    found: Recipe = validate(Recipe, {**fields, **changes}, "test")
    return found


def asked(folder: Path, policy: Decoder, **changes: Any) -> tuple[SideBySide, Told]:
    one, told = recipe(folder, **changes), Told()
    wheres = [f"{folder}/pairs.jsonl:{line}" for line in (1, 2, 4, 7)]
    beside = SideBySide(one, load_tokenizer(folder / "toy"), wheres)
    beside.tell(2, policy, told)
    return beside, told


def policy_of(folder: Path) -> Decoder:
    model: Decoder = load_model(folder / "toy", dtype="float32")
    return model


def moved(policy: Decoder) -> Decoder:
    """The same, trained by nobody."""
    dice = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=dice))
    return policy


def test_at_the_start_nothing_is_apart(folder: Path) -> None:
    _, told = asked(folder, policy_of(folder))
    numbers, *samples = told.lines
    assert numbers["step"] == 2
    assert numbers["samples/kl"] == pytest.approx(0, abs=1e-5)
    assert numbers["samples/letters_win_rate"] == 0.5
    assert numbers["samples/letters"] == numbers["samples/start_letters"] > 0
    assert all(line["sample"] == line["start_sample"] for line in samples)


def test_a_policy_that_moved_is_told_apart(folder: Path) -> None:
    _, told = asked(folder, moved(policy_of(folder)))
    numbers, *samples = told.lines
    assert numbers["samples/kl"] > 1e-3
    assert any(line["sample"] != line["start_sample"] for line in samples)
    assert [line["prompt"] for line in samples] == ["about 0: ", "about 1: "]
    assert any("policy" in line for line in told.said)
    assert any("3 held-out prompts" in line for line in told.said)


def test_prompts_are_those_of_held_out_rows_each_once(folder: Path) -> None:
    beside, _ = asked(folder, policy_of(folder))
    assert [prompt.prompt for prompt in beside.prompts] == ["about 0: ", "about 1: ", "about 3: "]


def test_prompts_of_another_file_may_be_named(folder: Path) -> None:
    rows = [{"prompt": f"other {i}", "extra": i} for i in range(3)]
    (folder / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    compare = {"prompts": str(folder / "other.jsonl"), "rows": 2}
    beside, _ = asked(folder, policy_of(folder), prompts=["what of it"], compare=compare)
    assert [(prompt.prompt, prompt.columns) for prompt in beside.prompts] == [
        ("other 0", {"extra": 0}),
        ("other 1", {"extra": 1}),
    ]


def test_the_end_is_reported_with_intervals(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside, told = asked(folder, moved(policy_of(folder)))
    monkeypatch.setattr(SideBySide, "_ask", lambda *rest: pytest.fail("asked again"))
    report = beside.report(2, policy_of(folder))
    start, policy = report["stages"]["start"], report["stages"]["policy"]
    numbers = told.lines[0]
    assert start["divergence"] == [0, 0, 0]
    assert policy["divergence"][0] == pytest.approx(numbers["samples/kl"])
    letters = policy["scores"]["letters"]
    assert letters["mean"][0] == pytest.approx(numbers["samples/letters"])
    assert letters["gain"][0] == pytest.approx(numbers["samples/letters"] - numbers["samples/start_letters"])
    assert letters["gain"][1] <= letters["gain"][0] <= letters["gain"][2]
    assert [sample["prompt"] for sample in report["samples"]] == ["about 0: ", "about 1: "]
    assert any("gain over start" in line for line in report_lines(report))


def test_what_was_not_asked_at_the_last_step_is_asked_for_the_report(folder: Path) -> None:
    beside, _ = asked(folder, moved(policy_of(folder)))
    assert beside.report(3, policy_of(folder))["stages"]["policy"]["divergence"][0] == pytest.approx(0, abs=1e-5)


def test_the_recipes_own_prompts_come_first(folder: Path) -> None:
    beside, _ = asked(folder, policy_of(folder), prompts=["what of it"])
    assert [prompt.prompt for prompt in beside.prompts] == ["what of it"]


def test_a_new_adapter_is_switched_off_and_no_model_is_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = {"adapter": {"r": 2}}
    policy = policy_of(folder)
    adapt(policy, recipe(folder, **adapter))
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2)
    monkeypatch.setattr("intaglio.training.measuring.side_by_side.build_model", lambda *rest: pytest.fail("read again"))
    _, told = asked(folder, policy, **adapter)
    _, plain = asked_before(folder, policy_of(folder), monkeypatch)
    assert told.lines[0]["samples/kl"] > 1e-3
    starts = [[line["start_sample"] for line in one.lines[1:]] for one in (told, plain)]
    assert starts[0] == starts[1]


def asked_before(folder: Path, policy: Decoder, monkeypatch: pytest.MonkeyPatch) -> tuple[SideBySide, Told]:
    """With models read again as usual."""
    monkeypatch.undo()
    return asked(folder, policy)


def test_of_no_prompts_nothing_is_told(folder: Path) -> None:
    told = Told()
    SideBySide(recipe(folder), load_tokenizer(folder / "toy"), []).tell(2, policy_of(folder), told)
    assert (told.lines, told.said) == ([], [])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"objective": {"kind": "language_model"}, "prompts": ["a"]}, ["compare", "language_model"]),
        ({"pairs": {}, "compare": None, "objective": {"kind": "language_model"}, "prompts": ["a"]}, ["pairs"]),
        ({"compare": None, "sample_every": 0, "objective": {"kind": "reward"}, "pairs": {"by": "sum"}}, ["pairs.by"]),
    ],
)
def test_what_means_nothing_is_refused(folder: Path, changes: dict[str, Any], words: list[str]) -> None:
    with user_error(*words):
        recipe(folder, **changes)
