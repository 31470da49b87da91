"""All stages of the shipped recipe at toy size: run, reported, killed in each of them, gone on with, and done again."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from intaglio.checkpoints.classifiers import load_classifier
from intaglio.checkpoints.models import load_tokenizer
from intaglio.training.loop import Loop, Step
from intaglio.training.recipe import Recipe
from intaglio.training.run import Outcome
from intaglio.training.run import finish as finish_run
from intaglio.training.stages.plan import Stages, load_stages
from intaglio.training.stages.runs import StagesOutcome, run_stages
from toy_models import user_error
from toy_stages import RECIPE, STAGES, toy_changes


class Killed(BaseException):
    """Nothing after it runs, as with SIGKILL."""


def touched(picture: Path, *rest: Any) -> None:
    """In the place of a picture: whether one would have been drawn."""
    picture.write_bytes(b"")


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """How fast the machine is need not be measured in every run, nor need all curves be drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("intaglio.training.run.measured_peak", lambda dtype, device: 1e9)
        for module in ("log", "rl.reward_kl"):
            patch.setattr(f"intaglio.training.{module}.draw_curves", touched)
        yield


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the run that all tests look at draws its own."""
    monkeypatch.setattr("intaglio.training.stages.pages.draw_spots", lambda *rest: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(scope="module")
def stages(folder: Path) -> Stages:
    return load_stages(RECIPE, toy_changes(folder))


@pytest.fixture(scope="module")
def whole(folder: Path, stages: Stages) -> StagesOutcome:
    return run(stages, folder / "whole")


def run(stages: Stages, out: Path, say: Callable[[str], None] = lambda line: None) -> StagesOutcome:
    return run_stages(stages, out, say=say, quiet=True)


def made(out: Path, stage: str) -> dict[str, torch.Tensor]:
    return load_file(out / stage / "model" / "model.safetensors")


def answers(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]


def test_every_stage_leaves_a_model(whole: StagesOutcome) -> None:
    assert [*whole.stages] == [*STAGES]
    assert all((whole.out / stage / "model" / "model.safetensors").exists() for stage in STAGES)
    assert all(end["steps"] == 4 for end in whole.stages.values())
    assert all((whole.out / stage / "curves.png").exists() for stage in STAGES)
    assert all((whole.out / stage / "reward-kl.png").exists() == (stage in ("ppo", "dpo")) for stage in STAGES)


def test_stages_that_write_are_asked_and_the_baseline_is_no_way_from_itself(whole: StagesOutcome) -> None:
    assert whole.report is not None
    assert [*whole.report["stages"]] == ["pretrain", "sft", "ppo", "dpo"]
    base = whole.report["stages"]["sft"]
    assert base["divergence"] == [0.0, 0.0, 0.0]
    assert all(judge["win_rate"] == [0.5, 0.5, 0.5] for judge in base["scores"].values())
    assert all(whole.report["stages"][name]["divergence"][0] > 0 for name in ("pretrain", "ppo", "dpo"))


def test_the_report_says_what_its_answers_say(whole: StagesOutcome) -> None:
    assert whole.report is not None
    rows = answers(whole.out)
    for name, stage in whole.report["stages"].items():
        for judge, told in stage["scores"].items():
            ours, base = (np.array([row["answers"][one][judge] for row in rows]) for one in (name, "sft"))
            assert told["mean"][0] == pytest.approx(ours.mean())
            assert told["gain"][0] == pytest.approx((ours - base).mean())
            assert told["win_rate"][0] == pytest.approx((0.5 * (ours == base) + (ours > base)).mean())
        texts = [row["answers"][name]["text"] for row in rows]
        assert stage["scores"]["short"]["mean"][0] == pytest.approx(-np.mean([len(text) for text in texts]))


def test_the_reward_is_the_reward_stages(whole: StagesOutcome) -> None:
    reward, tokenizer = load_classifier(whole.out / "reward" / "model"), load_tokenizer(whole.out / "reward" / "model")
    equal = []
    for row in answers(whole.out):
        for said in row["answers"].values():
            ids = tokenizer.encode(row["prompt"]) + tokenizer.encode(said["text"], add_special_tokens=False)
            ended = [ids, [*ids, tokenizer.eos_token_id]]  # an answer that was cut off has no end
            scores = [reward(torch.tensor([one])).item() for one in ended]
            equal.append(min(abs(score - said["reward"]) for score in scores) < 1e-5)
    assert sum(equal) > 8, sum(equal)  # of the others the text has other ids than the answer had


def test_the_page_and_the_picture_are_there(whole: StagesOutcome) -> None:
    page = (whole.out / "report.md").read_text()
    assert "| dpo |" in page
    assert "about river:" in page
    assert (whole.out / "report.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_done_is_not_done_again(whole: StagesOutcome, stages: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loop, "step", lambda self: pytest.fail("stepped"))
    monkeypatch.setattr("intaglio.training.stages.report.interview", lambda *rest: pytest.fail("asked"))
    said: list[str] = []
    again = run(stages, whole.out, said.append)
    assert again == whole
    assert said == [f"stage {number} of 5, {name}: done" for number, name in enumerate(STAGES, 1)]


def test_killed_in_every_stage_it_goes_on_to_the_same_end(
    whole: StagesOutcome, stages: Stages, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, out = Loop.step, folder / "killed"
    begun: list[str] = []
    killed: list[str] = []

    def until_the_fourth(self: Loop) -> Step:
        """Each stage is killed once, a step behind its last checkpoint."""
        if self.done == 3 and begun[-1] not in killed:
            killed.append(begun[-1])
            raise Killed
        return step(self)

    def finish(recipe: Recipe, folder: Path, **how: Any) -> Outcome:
        begun.append(folder.name)
        return finish_run(recipe, folder, **how)

    monkeypatch.setattr("intaglio.training.stages.runs.finish", finish)
    monkeypatch.setattr(Loop, "step", until_the_fourth)
    ended = None
    while ended is None:
        try:
            ended = run(stages, out)
        except Killed:
            continue
    assert killed == [*STAGES]
    assert ended.report is not None
    assert whole.report is not None
    assert ended.report["stages"] == whole.report["stages"]
    for stage in STAGES:
        ours, theirs = made(out, stage), made(whole.out, stage)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_stage_that_was_removed_is_made_again(whole: StagesOutcome, stages: Stages) -> None:
    before = made(whole.out, "dpo")
    shutil.rmtree(whole.out / "dpo")
    again = run(stages, whole.out)
    assert again.stages["dpo"]["weights"] == whole.stages["dpo"]["weights"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in made(whole.out, "dpo").items())


def test_another_recipe_does_not_go_on_with_what_was_begun(whole: StagesOutcome, folder: Path) -> None:
    changed = load_stages(RECIPE, [*toy_changes(folder), "sft.optimizer.learning_rate=0.5"])
    with user_error("sft", "another optimizer", "remove"):
        run(changed, whole.out)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ("dpo.data=nowhere.jsonl", "nowhere.jsonl"),
        ("report.prompts=nowhere.jsonl", "nowhere.jsonl"),
        ("report.scores=[{function: nowhere.py:f}]", "nowhere.py"),
        ("dpo.compare={rewards: [{function: nowhere.py:f}]}", "nowhere.py"),
    ],
)
def test_what_the_last_stage_lacks_is_missed_before_the_first_one_runs(folder: Path, change: str, word: str) -> None:
    out = folder / "lacking"
    with user_error(word):
        run(load_stages(RECIPE, [*toy_changes(folder), change]), out)
    assert not out.exists()


def test_what_was_made_of_something_else_is_not_used(stages: Stages, whole: StagesOutcome, folder: Path) -> None:
    out = folder / "other"
    shutil.copytree(whole.out, out)
    recipes = [*toy_changes(folder), *(f"{name}.model={{stage: pretrain}}" for name in ("reward", "ppo", "dpo"))]
    for stage in ("reward", "ppo", "dpo"):  # their recipes name another folder
        shutil.rmtree(out / stage)
    shutil.rmtree(out / "pretrain")
    (out / "sft" / "recipe.yaml").unlink()
    with user_error("sft", "made of a pretrain that is no longer there", "remove"):
        run(load_stages(RECIPE, [*recipes, "pretrain.seed=1"]), out)
