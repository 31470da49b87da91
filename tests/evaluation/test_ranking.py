"""Answers put in order: the loop that asks, what it remembers, and a judge that is asked in both orders."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intaglio.data.formats import Format, detect
from intaglio.data.preference_encoding import PromptExample
from intaglio.data.preferences import preferences_of
from intaglio.data.readers import Row
from intaglio.engine.llm import LLM, Completion
from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.evaluation.journal import Journal
from intaglio.evaluation.judge import JudgeRanker
from intaglio.evaluation.ranking import Candidates, Order, Verdict, rank_prompts, ranked_rows, tally


def completion(text: str) -> Completion:
    return Completion(text, [1], [0.0], "stop", 1)


def example(number: int, **columns: Any) -> PromptExample:
    source = ({"role": "user", "content": f"q{number}"},)
    return PromptExample(np.array([1, 2], dtype=np.int32), f"f:{number}", columns, source)


EXAMPLES = [example(0, answer=4, chosen="x"), example(1), example(2)]


class Scripted:
    """A ranker that says what it was told to; remembers what it was asked."""

    name = "script"

    def __init__(self, *script: Verdict | Order) -> None:
        self.script, self.asked = list(script), list[str]()

    def __call__(self, example: PromptExample, answers: Sequence[Completion]) -> Verdict | Order:
        self.asked.append(example.where)
        return self.script.pop(0)


def two(number: int) -> list[Completion]:
    """Prompt 1 has one answer only."""
    return [completion("a"), completion("b")][: 1 if number == 1 else 2]


SECOND = Verdict("ranks", (2, 1))


def test_rows_are_ranked_best_first_with_the_columns_that_mean_nothing_else(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", {"k": 2})
    assert rank_prompts(EXAMPLES, two, Scripted(SECOND, Verdict("scores", (0.5, 0.25))), journal, {"by": "me"})
    rows = ranked_rows(journal)
    assert rows[0] == {
        "prompt": [{"role": "user", "content": "q0"}],
        "answers": ["b", "a"],
        "ranks": [1, 2],
        "answer": 4,
        "by": "me",
    }
    assert (rows[1]["answers"], rows[1]["scores"]) == (["a", "b"], [0.5, 0.25])
    assert tally(journal) == {"ranked": 2, "skipped": 0, "alike": 1}
    for row in rows:
        assert detect(Row(row, "f:1")) is Format.RANKED
        assert preferences_of(Row(row, "f:1"))[0].weight == 1


def test_what_was_ended_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "j"
    first = Scripted("skip", "quit")
    assert not rank_prompts(EXAMPLES, two, first, Journal(path, {"k": 2}))
    second = Scripted(SECOND)
    journal = Journal(path, {"k": 2})
    assert rank_prompts(EXAMPLES, two, second, journal)
    assert second.asked == ["f:2"]
    assert tally(journal) == {"ranked": 1, "skipped": 1, "alike": 1}


def test_undo_takes_back_what_was_decided_and_what_followed_by_itself(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", {})
    ranker = Scripted("undo", SECOND, "undo", "skip", SECOND)
    assert rank_prompts(EXAMPLES, two, ranker, journal)
    assert ranker.asked == ["f:0", "f:0", "f:2", "f:0", "f:2"]
    assert tally(journal) == {"ranked": 1, "skipped": 1, "alike": 1}
    assert tally(Journal(tmp_path / "j", {})) == tally(journal)


def test_a_journal_loses_no_more_than_the_line_that_was_being_written(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path, {"k": 2})
    journal.add({"a": "é"})
    journal.add("skipped")
    with path.open("a") as file:
        file.write('{"half')
    again = Journal(path, {"k": 2})
    assert again.entries == [{"a": "é"}, "skipped"]
    again.add("next")
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"k": 2}, {"a": "é"}, "skipped", "next"]
    again.remove()
    assert not path.exists()


def test_a_journal_of_other_settings_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path / "j", {"k": 2, "seed": 0})
    with pytest.raises(UserError, match="was begun with k 2, and this is 4; give the same again"):
        Journal(tmp_path / "j", {"k": 4, "seed": 0})
    (tmp_path / "other").write_text("words\n")
    with pytest.raises(UserError, match="is no journal of ours"):
        Journal(tmp_path / "other", {})


def test_candidates_are_the_same_whoever_asks_first_and_different_from_each_other(toy_dir: Path) -> None:
    llm = LLM(toy_dir)
    examples = [PromptExample(np.array(ids, dtype=np.int32), "f") for ids in ([5, 6], [7, 8, 9], [5, 6])]
    params = SamplingParams(n=3, temperature=1, max_tokens=4)
    forwards, backwards = Candidates(llm, examples, params, seed=3, ahead=2), Candidates(llm, examples, params, seed=3)
    texts = {number: [one.text for one in forwards(number)] for number in (0, 1, 2)}
    assert {number: [one.text for one in backwards(number)] for number in (2, 1, 0)} == texts
    assert all(len(set(each)) == len(each) for each in texts.values())
    assert texts[0] != texts[2]  # the same prompt, another seed
    greedy = Candidates(llm, examples, SamplingParams(n=3, temperature=0, max_tokens=4), seed=0)
    assert len(greedy(0)) == 1


class Opinionated:
    """A judge that likes an answer the more `x` it has, and the first of two by `bias` (in nats)."""

    def __init__(self, bias: float = 0.0) -> None:
        self.bias, self.questions = bias, list[str]()

    def first_words(self, messages: Sequence[Any]) -> dict[str, float]:
        (message,) = messages
        self.questions.append(message["content"])
        first, second = (part.split("---\n")[1].count("x") for part in message["content"].split("Answer ")[1:3])
        return {"A": first - second + self.bias, " b": 0.0, "C": 9.0}


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_a_judge_is_asked_in_both_orders_and_its_love_of_a_place_cancels_out() -> None:
    answers = [completion("x"), completion(""), completion("xxx")]
    judge = Opinionated(bias=1.5)
    ranker = JudgeRanker("j", judge)
    verdict = ranker(EXAMPLES[0], answers)
    assert verdict.key == "scores"
    likes = {d: (sigmoid(d + 1.5) + 1 - sigmoid(-d + 1.5)) / 2 for d in (1, -2, -3)}
    expected = [(likes[1] + likes[-2]) / 2, (1 - likes[1] + likes[-3]) / 2, (2 - likes[-2] - likes[-3]) / 2]
    assert verdict.values == pytest.approx(expected, abs=1e-4)
    assert sum(verdict.values) == pytest.approx(1.5, abs=1e-3)
    assert (ranker.pairs, ranker.turned, ranker.silent) == (3, 1, 0)  # only x against nothing hung on the order
    assert len(judge.questions) == 6
    assert "--- user ---\nq0" in judge.questions[0]


def test_a_judge_that_names_neither_is_undecided() -> None:
    class Mute:
        def first_words(self, messages: Sequence[Any]) -> dict[str, float]:
            return {"Well": -0.1}

    ranker = JudgeRanker("j", Mute())
    assert ranker(EXAMPLES[0], [completion("a"), completion("b")]).values == (0.5, 0.5)
    assert ranker.silent == 2
