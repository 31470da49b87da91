"""Two models against each other: who wins is said by scores, by a judge in both orders, or by the right answers."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.evaluation.duel import Bout, Duel, JudgeReferee, Question, Referee, ScoreReferee, duel, likelihood_duel
from intaglio.evaluation.journal import Journal
from intaglio.evaluation.subjects.subject import Answer, Likelihood, Prompt, SubjectGoneError, Unanswered
from intaglio.text.tokenizer import Tokenizer

PARAMS = SamplingParams(temperature=0, max_tokens=4)
QUESTIONS = [Question(str(i), f"Q{i}", ("right",)) for i in range(4)]


class Scripted:
    """Says what it is told to say; None is no answer."""

    tokenizer: Tokenizer | None = None
    context: int | None = None

    def __init__(self, said: Mapping[str, str | None], nats: Mapping[str, float] | None = None) -> None:
        self.name, self.said, self.nats = "scripted", said, nats or {}
        self.asked: list[Prompt] = []
        self.gone = False

    def identity(self) -> dict[str, Any]:
        return {"name": self.name}

    def log_probs(self, rows: Sequence[Sequence[int]]) -> list[list[float] | Unanswered]:
        raise NotImplementedError

    def likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood | Unanswered]:
        return [Likelihood(self.nats[f"{a}{b}"], 1, greedy=True) for a, b in pairs]

    def answers(self, prompts: Sequence[Prompt], params: SamplingParams) -> list[Answer | Unanswered]:
        assert params == PARAMS
        if self.gone:
            raise SubjectGoneError("gone")
        self.asked += prompts
        told = [self.said[str(prompt)] for prompt in prompts]
        return [Unanswered("silent") if text is None else Answer(text, "stop", 1) for text in told]


OURS = {"Q0": "xxx", "Q1": "x", "Q2": "same", "Q3": None}
THEIRS = {"Q0": "x", "Q1": "xxx", "Q2": "same ", "Q3": "x"}


def played(referee: Referee, tmp_path: Path, **how: Any) -> Duel:
    journal = Journal(tmp_path / "bouts.jsonl", {"a": 1})
    return duel(QUESTIONS, Scripted(OURS), Scripted(THEIRS), referee, PARAMS, journal, **how)


def letters(questions: Sequence[Question], texts: Sequence[str]) -> list[float]:
    """Many x are good; none is no score."""
    return [text.count("x") or math.nan for text in texts]


class Opinionated:
    """Likes an answer the more x it has, and the first of two by `bias`, in nats."""

    def __init__(self, bias: float) -> None:
        self.bias, self.questions = bias, list[str]()

    def first_words(self, messages: Sequence[Any]) -> dict[str, float]:
        self.questions.append(messages[0]["content"])
        first, second = (part.split("---\n")[1].count("x") for part in self.questions[-1].split("Answer ")[1:3])
        return {"A": first - second + self.bias, "B": 0.0} if first + second < 9 else {"Well": 0.0}


def test_the_higher_score_wins(tmp_path: Path) -> None:
    found = played(ScoreReferee("letters", letters), tmp_path)
    assert [bout.points for bout in found.bouts] == [1, 0, None, None]
    assert found.bouts[0] == Bout("0", 1.0, "xxx", "x", (3, 1))
    assert found.bouts[2].reason == "letters has no score for it"
    assert found.bouts[3] == Bout("3", None, reason="silent")
    close = played(ScoreReferee("letters", letters, within=2), tmp_path / "close")
    assert [bout.points for bout in close.decided] == [0.5, 0.5]


def test_a_judge_reads_both_orders(tmp_path: Path) -> None:
    judge = Opinionated(bias=1.0)
    found = played(JudgeReferee("judge", judge), tmp_path)
    assert [bout.points for bout in found.bouts] == [1, 0, 0.5, None]
    assert len(judge.questions) == 4  # not about answers that are the same, or missing
    assert judge.questions[0].index("xxx") < judge.questions[1].index("xxx")
    report = found.as_json()
    assert (report["wins"], report["ties"], report["losses"], report["items"]) == (1, 1, 1, 3)
    assert report["rate"][0] == 0.5
    assert report["p"] == 1.0
    assert report["unanswered"] == [{"id": "3", "reason": "silent"}]


def test_a_judge_that_turns_with_the_order_has_seen_a_tie(tmp_path: Path) -> None:
    found = played(JudgeReferee("judge", Opinionated(bias=5.0)), tmp_path)
    assert [bout.points for bout in found.bouts] == [0.5, 0.5, 0.5, None]
    assert [bout.turned for bout in found.bouts] == [True, True, False, False]
    assert found.as_json()["turned_by_order"] == 2


def test_a_judge_that_names_neither_decides_nothing(tmp_path: Path) -> None:
    long = Scripted({"Q0": "x" * 9})
    journal = Journal(tmp_path / "bouts.jsonl", {})
    found = duel(QUESTIONS[:1], long, Scripted(THEIRS), JudgeReferee("j", Opinionated(0)), PARAMS, journal)
    assert found.bouts[0].points is None
    assert found.bouts[0].reason == "j names neither answer"
    assert found.as_json()["items"] == 0


def test_right_answers_decide_by_their_likelihood(tmp_path: Path) -> None:
    ours, theirs = (
        {"Q0right": -1.0, "Q1right": -2.0, "Q1fine": -9.0},
        {"Q0right": -3.0, "Q1right": -9.0, "Q1fine": -1.5},
    )
    questions = [QUESTIONS[0], Question("1", "Q1", ("right", "fine"))]
    found = likelihood_duel(questions, Scripted({}, ours), Scripted({}, theirs), Journal(tmp_path / "b.jsonl", {}))
    assert [(bout.points, bout.marks) for bout in found.bouts] == [(1, (-1, -3)), (0, (-2, -1.5))]
    for bad, message in ((Question("1", "Q1"), "no right answer"), (Question("2", [], ("x",)), "is a chat")):
        with pytest.raises(UserError, match=message):
            likelihood_duel([bad], Scripted({}), Scripted({}), Journal(tmp_path / "c.jsonl", {}))


def test_what_was_decided_is_not_asked_again(tmp_path: Path) -> None:
    ours, journal = Scripted(OURS), tmp_path / "bouts.jsonl"
    theirs = Scripted(THEIRS)
    referee, told = ScoreReferee("letters", letters), list[int]()

    def gone_after_two(count: int) -> None:
        told.append(count)
        theirs.gone = count == 2

    how: dict[str, Any] = {"batch": 2, "done": gone_after_two}
    with pytest.raises(SubjectGoneError):
        duel(QUESTIONS, ours, theirs, referee, PARAMS, Journal(journal, {}), **how)
    ours, theirs = Scripted(OURS), Scripted(THEIRS)
    found = duel(QUESTIONS, ours, theirs, referee, PARAMS, Journal(journal, {}))
    assert ours.asked == ["Q2", "Q3"]
    assert found == played(referee, tmp_path / "whole")
    assert told == [0, 2]
