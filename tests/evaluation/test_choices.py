"""Multiple choice by likelihood: lm-eval's metrics, and nothing counted that was not answered."""

from collections.abc import Sequence
from typing import Any

import pytest

from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.evaluation.choices import bare_choices, choice_scores, choose
from intaglio.evaluation.results import Missing, Outcome
from intaglio.evaluation.subjects.subject import Likelihood, Unanswered
from intaglio.evaluation.tasks.item import Item, Task
from intaglio.text.tokenizer import Tokenizer
from toy_llms import toy_tokenizer


class Told:
    """A subject whose likelihoods are written down, by continuation."""

    name = "told"
    context = None

    def __init__(self, nats: dict[str, float], tokenizer: Tokenizer | None = None) -> None:
        self.nats, self.tokenizer, self.asked = nats, tokenizer, list[tuple[str, str]]()

    def identity(self) -> dict[str, Any]:
        """None."""
        return {"name": self.name}

    def likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood | Unanswered]:
        """As written down; others are not answered."""
        self.asked += pairs
        return [Likelihood(self.nats[b], 1, False) if b in self.nats else Unanswered("lost") for _, b in pairs]

    def log_probs(self, rows: Sequence[Sequence[int]]) -> list[list[float] | Unanswered]:
        """Not asked."""
        raise AssertionError

    def answers(self, prompts: Sequence[Any], params: SamplingParams) -> list[Any]:
        """Not asked."""
        raise AssertionError


def test_metrics_divide_by_characters_and_by_bytes() -> None:
    scores = choice_scores([-3.0, -3.5, -7.0], ["ab", "好好", "abcdefgh"], (0,))
    assert scores == {"acc": 1.0, "acc_norm": 0.0, "acc_bytes": 0.0}
    # a character: -1.5, -1.75, -0.875; a byte: -1.5, -0.583, -0.875
    assert choice_scores([-3.0, -3.5, -7.0], ["ab", "好好", "abcdefgh"], (2,))["acc_norm"] == 1.0
    assert choice_scores([-3.0, -3.5, -7.0], ["ab", "好好", "abcdefgh"], (1,))["acc_bytes"] == 1.0
    assert choice_scores([-3.0, -3.5, -7.0], ["ab", "好好", "abcdefgh"], (1, 2))["acc_norm"] == 1.0


def test_a_tie_goes_to_the_first() -> None:
    assert choice_scores([-1.0, -1.0], ["a", "b"], (0,))["acc"] == 1.0
    assert choice_scores([-1.0, -1.0], ["a", "b"], (1,))["acc"] == 0.0


def test_the_blank_in_front_counts_only_where_the_question_has_it() -> None:
    assert bare_choices(Item("1", "A:", (" yes", "  no", "or"))) == ["yes", " no", "or"]
    assert bare_choices(Item("1", "A: ", (" yes", "no"))) == [" yes", "no"]


def test_items_without_all_their_likelihoods_are_missing() -> None:
    items = (Item("1", "A:", (" a", " b"), (0,), where="f:1"), Item("2", "A:", (" a", " lost"), (0,), where="f:2"))
    task = Task("t", "choice", items)
    one, other = choose(task, items, ["x A:", "y A:"], Told({" a": -1.0, " b": -2.0}))
    assert isinstance(one, Outcome)
    assert (one.prompt, one.prediction, one.right, one.nats) == ("x A:", "a", ["a"], [-1.0, -2.0])
    assert one.scores == {"acc": 1.0, "acc_norm": 1.0, "acc_bytes": 1.0}
    assert other == Missing("2", "f:2", "lost")


def test_letters_and_wishes_decide_which_metrics_are_told() -> None:
    items = (Item("1", "Answer:", (" A", " B"), (1,)),)
    subject = Told({" A": -1.0, " B": -2.0})
    (one,) = choose(Task("t", "choice", items, scoring="letter"), items, ["Answer:"], subject)
    (other,) = choose(Task("t", "choice", items, metrics=("acc_norm",)), items, ["Answer:"], subject)
    assert isinstance(one, Outcome)
    assert isinstance(other, Outcome)
    assert (one.scores, other.scores) == ({"acc": 0.0}, {"acc_norm": 0.0})


def test_a_chat_is_rendered_up_to_the_answer() -> None:
    items = (Item("1", "A:", (" a", " b"), (0,)),)
    task, chat = Task("t", "choice", items), [{"role": "user", "content": "say a"}]
    subject = Told({"a": -1.0, "b": -2.0}, toy_tokenizer())
    (one,) = choose(task, items, [chat], subject)
    assert isinstance(one, Outcome)
    assert one.prompt == chat
    assert {text for text, _ in subject.asked} == {"<|im_start|>user\nsay a<|im_end|>\n<|im_start|>assistant\n"}
    with pytest.raises(UserError, match="need the model's chat template; give --tokenizer"):
        choose(task, items, [chat], Told({}))
