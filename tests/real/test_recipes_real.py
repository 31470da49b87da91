"""The recipes that promise figures, run as a user runs them on real data: about an hour on two cores.

`INTAGLIO_RUNS=FOLDER` keeps the runs there, and those that have ended are looked at instead of being made again.
"""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from intaglio import LLM
from intaglio.training.log import read_log, step_seconds
from recipe_runs import runs, start, trained
from reference import Reference

__all__ = ["runs"]  # a fixture

pytestmark = [pytest.mark.real, pytest.mark.prove]

KILLED_AT = 450  # between two saves


def logged(run: Path, key: str) -> list[Any]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line[key] for line in lines if key in line]


class TestPretraining:
    def test_it_beats_what_needs_no_model_and_writes_code_that_parses(self, runs: Path) -> None:
        report = trained("pretrain-stdlib", runs / "stdlib")
        bits = logged(runs / "stdlib", "eval_bits_per_byte")[-1]
        assert bits < report["yardsticks"]["byte_5gram"]
        assert bits < report["yardsticks"]["xz"]
        code = report["code"]["min_p 0.05"]
        assert len(code["samples"]) == 50
        assert code["passed"] >= 25
        assert 0 < report["code"]["longest_shared"] < 300

    def test_killed_and_resumed_it_ends_bit_equal(self, runs: Path) -> None:
        trained("pretrain-stdlib", runs / "stdlib")
        run = runs / "stdlib-killed"
        if not (run / "report.json").exists():
            process = start("recipes/pretrain-stdlib.yaml", f"out={run}")
            while not (run / "log.jsonl").exists() or logged(run, "step")[-1:] < [KILLED_AT]:
                assert process.poll() is None
                time.sleep(1)
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert start("--resume", run).wait() == 0
        ours, theirs = (path / "model" / "model.safetensors" for path in (run, runs / "stdlib"))
        assert ours.read_bytes() == theirs.read_bytes()


class TestFineTuning:
    def test_it_learns_the_answers(self, runs: Path) -> None:
        answers = trained("sft-smollm2", runs / "sft")["answers"]
        assert answers["rows"] == 500
        tuned, untuned, shown = (answers[name]["exact_match"] for name in ("tuned", "untuned", "untuned, 5 examples"))
        assert tuned >= untuned + 0.30
        assert tuned >= shown + 0.15

    def test_transformers_opens_it_with_equal_logits(self, runs: Path) -> None:
        trained("sft-smollm2", runs / "sft")
        llm, reference = LLM(runs / "sft" / "model", dtype="float32"), Reference(runs / "sft" / "model")
        ids = llm.tokenizer.encode("Where was the first man on the moon born?")
        with torch.inference_mode():
            ours = llm.model(torch.tensor([ids]))[0]
        assert (ours - reference.logits(ids)).abs().max() <= 1e-3


class TestAdapters:
    @pytest.mark.parametrize("kind", ["lora", "qlora"])
    def test_they_learn_nearly_what_the_weights_do(self, runs: Path, kind: str) -> None:
        whole, answers = (trained(f"{name}-smollm2", runs / name)["answers"] for name in ("sft", kind))
        gains = [found["tuned over untuned"]["difference"] for found in (answers, whole)]
        assert gains[0] >= gains[1] - 0.05
        tokens, speeds = (logged(runs / kind, key) for key in ("tokens", "tokens_per_second"))
        assert sum(count / speed for count, speed in zip(tokens, speeds, strict=True)) < 300


class TestBeforeAttention:
    def test_it_normalises_dates_in_ten_minutes(self, runs: Path) -> None:
        answers = trained("attention-dates", runs / "attention-dates")["answers"]
        assert answers["rows"] == 1000
        assert answers["tuned"]["exact_match"] >= 0.98
        assert sum(step_seconds(read_log(runs / "attention-dates" / "log.jsonl"))) < 600

    @pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
    def test_a_recurrent_model_learns_code(self, runs: Path, cell: str) -> None:
        report = trained(f"{cell}-lm", runs / f"{cell}-lm")
        assert logged(runs / f"{cell}-lm", "eval_bits_per_byte")[-1] < report["yardsticks"]["byte_5gram"]

    def test_words_get_their_parts_of_speech(self, runs: Path) -> None:
        trained("tagger-bilstm", runs / "tagger-bilstm")
        assert logged(runs / "tagger-bilstm", "eval_accuracy")[-1] > 0.9
