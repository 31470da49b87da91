"""The number of every stage, from numbers that are known."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from intaglio.adapters.merge import MergeReport
from intaglio.demo import life, measuring, planning, scores, serving, training
from intaglio.demo.stage import Desk, Score, Stage
from intaglio.demo.stages import STAGES
from intaglio.engine.llm import Timing
from intaglio.evaluation.load.latency import Sample, summary
from intaglio.evaluation.results import Outcome, Results, TaskResult, write_results
from intaglio.files import write_json_lines
from intaglio.training.measuring.pair_exam import compare_pairs


def desk(folder: Path, **found: Any) -> Desk:
    return Desk(folder, True, 1, lambda line: None, found)


def test_every_number_has_a_name() -> None:
    named = {getattr(scores, name) for name in scores.__all__}
    used = {stage.score.of for stage in STAGES} | {stage.score.yardstick for stage in STAGES}
    assert used - {None} == named


def exam(folder: Path, right: dict[str, float]) -> Results:
    """Results of which some answers were right, written as `intaglio eval` writes them."""
    outcomes = [Outcome("exam", name, "", "rows:1", "?", "yes", ["yes"], {"acc": acc}) for name, acc in right.items()]
    results = Results({}, {}, {}, {"exam": TaskResult("choice", "hash", "rows", tuple(outcomes))})
    write_results(folder, results)
    return results


def test_right_answers_and_the_gain(tmp_path: Path) -> None:
    before = {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0}
    after = {"d": 1.0, "c": 1.0, "b": 0.0, "a": 1.0}  # in another order
    exam(tmp_path / "before", before)
    found = measuring.told(exam(tmp_path / "after", after))
    assert found["rows"] == 4
    found["gain"] = measuring.gain(*(measuring.right(tmp_path / stage) for stage in ("before", "after")))
    assert scores.right_answers(found) == 0.75
    assert found["gain"]["difference"] == 0.5
    assert found["gain"]["low"] <= 0.5 <= found["gain"]["high"]
    assert scores.right_before(found) == (0.25, "before training")


LOG = [
    {"step": 1, "loss": 9.0},
    {"step": 1, "eval_loss": 2.0, "eval_bits_per_byte": 1.5},
    {"step": 2, "eval_loss": 1.0, "eval_bits_per_byte": 0.75},
    {"step": 2, "sample": "x", "prompt": "y"},
]


def test_what_a_log_says_last(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "log.jsonl", LOG)
    bits, loss = (training.last(tmp_path, name) for name in ("eval_bits_per_byte", "eval_loss"))
    assert scores.bits_per_byte({"bits_per_byte": bits}) == 0.75
    assert scores.byte_5gram({"byte_5gram": 2.25}) == (2.25, "a byte 5-gram")
    assert scores.held_out_loss({"eval_loss": loss}) == 1.0


def test_pairs_told_apart() -> None:
    found = compare_pairs([-1.0, 2.0, 0.0, -3.0], [1.0, 2.0, -0.5, 3.0], say=lambda line: None)
    assert scores.told_apart(found) == 0.75
    assert scores.told_apart_before(found) == (0.25, "before it")


def test_a_merge() -> None:
    report = MergeReport("model", "bfloat16", False, False, None, tokens=40, max_difference=0.125, same_choice=39)
    found = training.compared(report)
    assert scores.largest_difference(found) == 0.125
    assert found["same_choice"] == 0.975


class Told:
    """A client of openai-python's shape whose answer comes in pieces, each when the clock says so."""

    def __init__(self, clock: list[float], pieces: list[tuple[float, str | None]]) -> None:
        self.clock, self.pieces = clock, pieces
        self.chat = SimpleNamespace(completions=self)

    def create(self, **asked: Any) -> Iterator[Any]:
        assert asked["stream"]
        for after, piece in self.pieces:
            self.clock[0] += after
            yield SimpleNamespace(choices=[SimpleNamespace(delta=SimpleNamespace(content=piece))])
        yield SimpleNamespace(choices=[])


def test_the_first_piece_is_the_first_that_has_text(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    text, first = serving.answered(Told(clock, [(0.25, ""), (0.25, "Par"), (2.0, "is"), (1.0, None)]), [])
    assert (text, first) == ("Paris", 0.5)
    assert scores.first_piece({"turns": [{"first_token_s": first}, {"first_token_s": 9.0}]}) == 0.5


def test_speeds() -> None:
    alone = Timing(rows=1, prompt_tokens=9, new_tokens=26, first_s=1.0, total_s=3.0)  # the first is the prompt's
    assert scores.answering_speed({"tokens_per_second": alone.tokens_per_second}) == 12.5
    answers = [
        Sample(start, 8, content=[start + 1], last=start + 4, end=start + 5, output_tokens=15) for start in (0.0, 5.0)
    ]
    assert scores.serving_speed(summary(answers)) == 3.0


def test_a_plan_is_tokens_of_a_step_by_its_time(tmp_path: Path) -> None:
    found = planning.plan_training_run(desk(tmp_path, pull={"path": "smollm2-135m"}))
    tokens = 8 * 16 * 2048
    assert scores.billion_tokens_a_day(found) == pytest.approx(tokens / found["step_seconds"] * 86_400 / 1e9)
    assert found["days"] == pytest.approx(2e12 / found["tokens_per_day"])


def test_the_seconds_of_a_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((10.0, 12.5))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    one = Stage("pull", "", (1, 1), lambda desk: {}, Score("seconds", scores.seconds, "least"))
    assert scores.seconds(life.live(desk(tmp_path), [one])["pull"]) == 2.5
