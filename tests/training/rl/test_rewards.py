"""What answers are worth: verifiers, functions of the user, reward models of the same and of another tokenizer."""

import math
from pathlib import Path

import pytest
import torch

from intaglio.checkpoints.classifiers import save_classifier
from intaglio.errors import UserError
from intaglio.models.heads import SequenceClassifier
from intaglio.training.objectives.rl_specs import RewardSpec
from intaglio.training.rl.rewards import FunctionReward, Rewards, build_rewards
from intaglio.training.rollout import Answer
from tiny_rollouts import asked, policy
from toy_llms import toy_tokenizer

TOKENIZER = toy_tokenizer()


def said(*texts: str) -> list[Answer]:
    return [Answer(TOKENIZER.encode(text), [], text, ended=True) for text in texts]


def test_a_function_gets_what_it_takes() -> None:
    def few(completions: list[str], answer: list[int]) -> list[float]:
        return [float(str(one) == text) for text, one in zip(completions, answer, strict=True)]

    def all_of_them(prompts: list[str], completions: list[str], **columns: list[int]) -> list[float | None]:
        assert columns == {"answer": [1, 2], "hint": [3, 4]}
        assert prompts == ["text", "text"]
        return [None, 0.5]

    prompts = asked([5], [6], answer=[1, 2], hint=[3, 4])
    assert FunctionReward("few", few)(prompts, said("1", "3")) == [1.0, 0.0]
    found = FunctionReward("all", all_of_them)(prompts, said("a", "b"))
    assert math.isnan(found[0])
    assert found[1] == 0.5


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda completions: [1.0], "no list of 2 numbers"),
        (lambda completions: ["good", "bad"], "'good', no number"),
        (lambda completions: 1 / 0, "ZeroDivisionError"),
        (lambda solution: [1.0], "missing 1 required"),
    ],
)
def test_a_function_that_fails_is_named(function: object, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        FunctionReward("mine", function)(asked([5], [6]), said("a", "b"))  # type: ignore[arg-type]
    assert error.value.where == "mine"


def test_rewards_are_weighted_and_what_none_can_score_is_not_a_number() -> None:
    one = FunctionReward("one", lambda completions: [1.0, None, None])
    other = FunctionReward("other", lambda completions: [0.5, 2.0, None])
    total, each = Rewards([one, other], [1.0, 2.0])(asked([5], [6], [7]), said("a", "b", "c"))
    torch.testing.assert_close(total, torch.tensor([2.0, 4.0, math.nan]), equal_nan=True)
    assert set(each) == {"one", "other"}


def test_functions_come_from_the_users_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def length(completions, **columns):\n    return [len(c) for c in completions]\n")
    rewards = build_rewards(
        [RewardSpec(function=f"{file}:length"), RewardSpec(function="arithmetic"), RewardSpec(pattern="a+")],
        TOKENIZER,
        "float32",
        "cpu",
    )
    total, each = rewards(asked([5], answer=[3]), said("aaa"))
    assert [*each] == ["length", "arithmetic", "pattern"]
    assert total.tolist() == [4.0]
    for place, message in (
        (f"{file}:width", "defines no function width"),
        (f"{tmp_path}/none.py:length", "no such file"),
        ("arithmetics", "no reward function"),
    ):
        with pytest.raises(UserError, match=message):
            build_rewards([RewardSpec(function=place)], TOKENIZER, "float32", "cpu")


def test_a_reward_model_reads_the_ids_that_were_made(tmp_path: Path) -> None:
    """And renders prompt and answer again where its tokenizer is another one."""
    model = SequenceClassifier(policy(3), 1)
    save_classifier(model, tmp_path / "same", TOKENIZER)
    other = toy_tokenizer(eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    other.chat_templates["default"] += " "
    save_classifier(model, tmp_path / "other", other)
    prompts, answers = asked([7, 3, 11], [40, 41]), said("hello", "the user")
    with torch.no_grad():
        ids = [[*prompt.prompt.tolist(), *answer.ids] for prompt, answer in zip(prompts, answers, strict=True)]
        expected = [float(model(torch.tensor([row]))) for row in ids]
    found, _ = build_rewards([RewardSpec(model=str(tmp_path / "same"))], TOKENIZER, "float32", "cpu")(prompts, answers)
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-5, rtol=0)
    again, _ = build_rewards([RewardSpec(model=str(tmp_path / "other"))], TOKENIZER, "float32", "cpu")(prompts, answers)
    with torch.no_grad():
        rows = [other.encode("text") + other.encode(a.text, add_special_tokens=False) + [0] for a in answers]
        expected = [float(model(torch.tensor([row]))) for row in rows]
    torch.testing.assert_close(again, torch.tensor(expected), atol=1e-5, rtol=0)


def test_what_is_no_reward_model_is_refused(tmp_path: Path, toy_dir: Path) -> None:
    save_classifier(SequenceClassifier(policy(), 2), tmp_path / "two", TOKENIZER)
    for path, message in ((toy_dir, "no reward model"), (tmp_path / "two", "two has 2 scores")):
        with pytest.raises(UserError, match=message):
            build_rewards([RewardSpec(model=str(path))], TOKENIZER, "float32", "cpu")
