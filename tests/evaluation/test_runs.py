"""Runs: every item asked once, whatever happens between, and nothing counted that was not answered."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.evaluation.answers import Scored
from intaglio.evaluation.results import Results, read_results
from intaglio.evaluation.runs import Settings, evaluate, run_name, units_of
from intaglio.evaluation.subjects.subject import Answer, Likelihood, Prompt, SubjectGoneError, Unanswered
from intaglio.evaluation.tasks.item import BadRow, Item, Task

CHOICE = Task(
    "parity",
    "choice",
    tuple(
        Item(str(n), f"{n}?\nA:", (" odd", " even"), (1 - n % 2,), category="low" if n < 5 else "high", stem=f"{n}?")
        for n in range(10)
    ),
    bad_rows=(BadRow("f:11", "no answer"),),
)
FREE = Task(
    "doubles",
    "generation",
    tuple(Item(str(n), f"2 x {n}?\nA:", references=(str(2 * n),), stem=f"2 x {n}?") for n in range(6)),
    stop=("\n",),
    max_tokens=5,
)


class Pupil:
    """Thinks that all numbers but 3 are even, and doubles rightly but for 4; breaks off after so many calls."""

    tokenizer = None
    context = None

    def __init__(self, calls: int = 10**6, silent: tuple[str, ...] = (), name: str = "pupil") -> None:
        self.name, self._calls, self._silent = name, calls, silent
        self.asked: list[Any] = []
        self.params: list[SamplingParams] = []

    def identity(self) -> dict[str, Any]:
        """Its name."""
        return {"name": self.name, "sizes": (1, 2)}

    def likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood | Unanswered]:
        """By the last question of the text."""
        self._call(pairs)
        return [self._likelihood(*pair) for pair in pairs]

    def _likelihood(self, context: str, continuation: str) -> Likelihood | Unanswered:
        number = context.rpartition("?")[0].split()[-1]
        if number in self._silent:
            return Unanswered("lost")
        believed = " odd" if number == "3" else " even"
        return Likelihood(-1.0 if continuation == believed else -9.0, 1, False)

    def log_probs(self, rows: Sequence[Sequence[int]]) -> list[list[float] | Unanswered]:
        """Not asked."""
        raise AssertionError

    def answers(self, prompts: Sequence[Prompt], params: SamplingParams) -> list[Answer | Unanswered]:
        """What is asked last, doubled."""
        self._call(prompts)
        self.params.append(params)
        return [self._answer(prompt) for prompt in prompts]

    def _answer(self, prompt: Prompt) -> Answer | Unanswered:
        text = prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
        number = text.rpartition("?")[0].split()[-1]
        if number in self._silent:
            return Unanswered("lost")
        return Answer("nine" if number == "4" else f" {2 * int(number)}.", "stop", 3)

    def _call(self, what: Sequence[Any]) -> None:
        self._calls -= 1
        if self._calls < 0:
            raise SubjectGoneError("the pupil has left")
        self.asked += what


def run(pupil: Pupil, tasks: Sequence[Task], folder: Path | None = None, **settings: Any) -> Results:
    """All of it."""
    chosen = Settings(**settings)
    return evaluate(units_of(tasks, chosen), pupil, chosen, folder, batch=4)


def test_scores_categories_and_bad_rows(tmp_path: Path) -> None:
    results = run(Pupil(), [CHOICE, FREE], tmp_path / "run")
    parity, doubles = results.tasks["parity"], results.tasks["doubles"]
    assert parity.metrics["acc"].mean == 0.6
    assert parity.metrics["acc"].n == 10
    assert {name: found["acc"].mean for name, found in parity.categories.items()} == {"low": 0.8, "high": 0.4}
    assert doubles.metrics["exact_match"].mean == pytest.approx(5 / 6)
    assert [one.prediction for one in doubles.outcomes][4:] == ["nine", "10."]
    assert parity.bad_rows == CHOICE.bad_rows
    assert read_results(tmp_path / "run").as_json() == json.loads(json.dumps(results.as_json()))
    assert not (tmp_path / "run/journal.jsonl").exists()


def test_a_run_that_broke_off_is_gone_on_with(tmp_path: Path) -> None:
    whole = run(Pupil(), [CHOICE, FREE])
    first = Pupil(calls=4)  # three batches of the one task, one of the other
    with pytest.raises(SubjectGoneError, match="the pupil has left"):
        run(first, [CHOICE, FREE], tmp_path)
    assert not (tmp_path / "results.json").exists()
    second = Pupil()
    assert run(second, [CHOICE, FREE], tmp_path) == whole
    assert len(first.asked) == 20 + 4
    assert second.asked == [f"2 x {n}?\nA:" for n in (4, 5)]
    third = Pupil(calls=0)
    assert run(third, [CHOICE, FREE], tmp_path).as_json() == json.loads(json.dumps(whole.as_json()))


def test_a_line_cut_off_in_the_journal_is_asked_again(tmp_path: Path) -> None:
    with pytest.raises(SubjectGoneError):
        run(Pupil(calls=1), [FREE], tmp_path)
    journal = tmp_path / "journal.jsonl"
    journal.write_text(journal.read_text()[:-30])
    again = Pupil()
    assert run(again, [FREE], tmp_path) == run(Pupil(), [FREE])
    assert len(again.asked) == 3


def test_what_is_not_answered_is_listed_never_averaged_and_asked_again(tmp_path: Path) -> None:
    results = run(Pupil(silent=("4", "7")), [CHOICE, FREE], tmp_path)
    assert [(one.id, one.reason) for one in results.tasks["parity"].unanswered] == [("4", "lost"), ("7", "lost")]
    assert results.tasks["parity"].metrics["acc"].n == 8
    assert results.tasks["parity"].metrics["acc"].mean == 5 / 8
    assert results.tasks["doubles"].metrics["exact_match"].mean == 1.0
    again = Pupil()
    assert run(again, [CHOICE, FREE], tmp_path) == run(Pupil(), [CHOICE, FREE])
    assert len(again.asked) == 2 * 2 + 1


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    run(Pupil(), [FREE], tmp_path)
    with pytest.raises(UserError, match="holds an evaluation with other settings; give another --out"):
        run(Pupil(), [FREE], tmp_path, seed=1)
    with pytest.raises(UserError, match="other model"):
        run(Pupil(name="other"), [FREE], tmp_path)
    with pytest.raises(UserError, match="other tasks"):
        run(Pupil(), [CHOICE], tmp_path)
    with pytest.raises(SubjectGoneError):
        run(Pupil(calls=1), [FREE], tmp_path / "begun")
    with pytest.raises(UserError, match="was begun with settings"):
        run(Pupil(), [FREE], tmp_path / "begun", seed=1)


def test_names_of_runs_hang_on_what_decides_the_scores() -> None:
    def name(tasks: Sequence[Task], pupil: Pupil | None = None, **settings: Any) -> str:
        chosen = Settings(**settings)
        return run_name(pupil or Pupil(), units_of(tasks, chosen), chosen)

    assert name([FREE]) == name([FREE])
    assert name([FREE]).startswith("eval-pupil-")
    others = [name([CHOICE]), name([FREE], seed=1), name([FREE], Pupil(name="x/y")), name([FREE], chat=True)]
    assert len({name([FREE]), *others}) == 5
    assert "/" not in "".join(others)


def test_several_numbers_of_shots_make_a_curve() -> None:
    pupil = Pupil()
    results = run(pupil, [FREE], shots=(0, 2))
    assert list(results.tasks) == ["doubles@0", "doubles@2"]
    assert [text.count("?") for text in pupil.asked] == [1] * 6 + [3] * 6
    assert {one.task for one in results.tasks["doubles@2"].outcomes} == {"doubles@2"}
    assert list(run(Pupil(), [FREE], shots=(2,)).tasks) == ["doubles"]
    with pytest.raises(UserError, match="doubles: 9 shots, and there are 5 examples"):
        units_of([FREE], Settings(shots=(9,)))
    with pytest.raises(UserError, match="a number is given twice"):
        units_of([FREE], Settings(shots=(1, 1)))


def test_a_limit_takes_the_same_items_each_time() -> None:
    pupil, again = Pupil(), Pupil()
    run(pupil, [FREE], limit=3, seed=5)
    run(again, [FREE], limit=3, seed=5)
    assert len(pupil.asked) == 3
    assert pupil.asked == again.asked


def test_how_answers_are_sampled_and_ended() -> None:
    pupil = Pupil()
    run(pupil, [FREE])
    run(pupil, [FREE], temperature=0.7, seed=3, max_tokens=9, chat=True)
    greedy, warm = pupil.params[0], pupil.params[-1]
    assert (greedy.temperature, greedy.max_tokens, greedy.stop, greedy.seed) == (0.0, 5, ("\n",), None)
    assert (warm.temperature, warm.max_tokens, warm.stop, warm.seed) == (0.7, 9, (), 3)
    assert isinstance(pupil.asked[-1], list)


def test_metrics_of_written_answers_may_be_others() -> None:
    assert list(run(Pupil(), [FREE], metrics=("number", "f1")).tasks["doubles"].metrics) == ["number", "f1"]
    with pytest.raises(UserError, match="no metric 'exactmatch'"):
        units_of([FREE], Settings(metrics=("exactmatch",)))


def test_choices_that_are_written_say_how_many_named_one() -> None:
    class Writer(Pupil):
        def _answer(self, prompt: Prompt) -> Answer | Unanswered:
            text = prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
            number = int(text.rpartition("?")[0].split()[-1])
            # an echo of the instruction is no answer (case 43); a letter with its option behind it is one (case 44)
            echo, option = "Write ANSWER: [LETTER]. So: ANSWER: (B)", "B. even"
            return Answer("I cannot say." if number == 0 else echo if number % 2 else option, "stop", 3)

    found = run(Writer(), [CHOICE], scoring="generate").tasks["parity"]
    assert (found.metrics["acc"].mean, found.metrics["valid"].mean) == (0.4, 0.9)
    assert (found.outcomes[0].prediction, found.outcomes[1].prediction) == ("", "B")
    assert found.outcomes[2].right == ["B"]


def test_programs_are_run_only_where_that_is_allowed() -> None:
    code = replace(FREE, kind="code", metrics=("pass@2",))
    with pytest.raises(UserError, match="doubles: its answers are programs, which are run; give --allow-code"):
        run(Pupil(), [code])
    with pytest.raises(UserError, match="all samples would be the same"):
        units_of([code], Settings(samples=2))
    settings, pupil = Settings(samples=2, temperature=0.5, seed=7), Pupil(silent=("5",))

    def judge(task: Task, answers: Any) -> dict[str, Scored]:
        return {name: Scored("passes", {"pass@2": float(len(texts) == 2)}) for name, texts in answers.items()}

    results = evaluate(units_of([code], settings), pupil, settings, judge=judge)
    assert results.tasks["doubles"].metrics["pass@2"].n == 5
    assert [one.id for one in results.tasks["doubles"].unanswered] == ["5"]
    assert {params.seed for params in pupil.params} == {7, 8}
    assert results.tasks["doubles"].outcomes[1].text == "# sample 1\n 2.\n\n# sample 2\n 2."


def test_progress_is_told_and_ends_whole() -> None:
    told: list[tuple[str, int, int]] = []
    settings = Settings()
    evaluate(units_of([CHOICE], settings), Pupil(), settings, batch=4, watch=lambda *one: told.append(one))
    assert told == [("parity", done, 10) for done in (0, 4, 8, 10)]
