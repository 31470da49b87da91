"""One model, the same items, four doors: our own evaluation, lm-eval on the weights and through our API, EvalScope
through our API. For `make prove`: about half an hour on two cores.

`INTAGLIO_RUNS=FOLDER` keeps the runs there, and those that have ended are looked at instead of being made again.
`INTAGLIO_ITEMS=N` has lm-eval asked the first N items of each task alone, where there is no time for all.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from intaglio.engine.llm import LLM
from intaglio.evaluation.bridges.evalscope import EvalScope
from intaglio.evaluation.bridges.lm_eval import LmEval, completions
from intaglio.evaluation.bridges.sheet import Sheet, sheet_of
from intaglio.evaluation.results import Outcome, Results, TaskResult, read_results, write_results
from intaglio.evaluation.runs import Settings, Unit, evaluate, units_of
from intaglio.evaluation.subjects.asking import Asker
from intaglio.evaluation.subjects.local import local_subject
from intaglio.evaluation.subjects.remote import RemoteSubject
from intaglio.evaluation.tasks.item import Item, Task
from intaglio.evaluation.tasks.read import read_task
from intaglio.files import write_json
from kind_questions import kind_sheet, kind_task, write_chats
from recipe_runs import runs, start
from scripted_answers import scripted_answers
from served_model import served_model
from shared_cache import shared_home

__all__ = ["runs"]  # a fixture

pytestmark = [pytest.mark.real, pytest.mark.prove]

EVAL = Path(sys.prefix).parent / ".venv-eval" / "bin" / "python"
needs_eval = pytest.mark.skipif(not EVAL.exists(), reason="no .venv-eval: run `make eval-env`")

BIG_BENCH = (
    "code_line_description",
    "phrase_relatedness",
    "movie_recommendation",
    "general_knowledge",
    "similarities_abstraction",
    "logical_sequence",
    "entailed_polarity",
    "emoji_movie",
    "understanding_fables",
    "conceptual_combinations/contradictions",
    "emojis_emotion_prediction",
    "physics",
)
"""Those on which SmolLM2 is better than chance."""
LIMIT = 100
FIRST = int(os.environ.get("INTAGLIO_ITEMS", LIMIT))
NEAR = 5e-4
"""Nats, of a whole answer in fp32."""


@needs_eval
class TestBigBench:
    @pytest.fixture(scope="class")
    def units(self) -> list[Unit]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("INTAGLIO_HOME", str(shared_home()))
            tasks = [read_task(f"bigbench:{name}") for name in BIG_BENCH]
        return units_of(tasks, Settings(limit=LIMIT))

    @pytest.fixture(scope="class")
    def sheets(self, units: list[Unit]) -> list[Sheet]:
        sheets = [sheet_of(unit, Settings(limit=LIMIT)) for unit in units]
        return [replace(sheet, questions=sheet.questions[:FIRST]) for sheet in sheets]

    @pytest.fixture(scope="class")
    def ours(self, units: list[Unit], smollm2_dir: Path, runs: Path) -> Results:
        torch.set_num_threads(1)
        subject = local_subject(LLM(smollm2_dir, dtype="float32"), smollm2_dir)
        return evaluate(units, subject, Settings(limit=LIMIT), runs / "bigbench-ours")

    def test_lm_eval_on_the_weights(self, ours: Results, sheets: list[Sheet], smollm2_dir: Path, runs: Path) -> None:
        told = {"pretrained": str(smollm2_dir), "dtype": "float32"}
        theirs = kept(runs / "bigbench-hf", lambda at: LmEval(at, "hf", told, 8, EVAL).run(sheets)[0])
        agree(ours.tasks, theirs, runs / "bigbench-hf.json")

    def test_lm_eval_through_our_api(self, ours: Results, sheets: list[Sheet], smollm2_dir: Path, runs: Path) -> None:
        def ask(folder: Path) -> Mapping[str, TaskResult]:
            options = ("--served-model-name", "m", "--dtype", "float32", "--threads", "1")
            with served_model(smollm2_dir, *options, log=runs / "bigbench-api.log") as server:
                told = completions(server.url, "m", smollm2_dir, bos=False, max_length=2048)
                return LmEval(folder, "local-completions", told, 16, EVAL).run(sheets)[0]

        agree(ours.tasks, kept(runs / "bigbench-api", ask), runs / "bigbench-api.json")


def kept(folder: Path, make: Callable[[Path], Mapping[str, TaskResult]]) -> Mapping[str, TaskResult]:
    """The results in `folder`, which `make` makes if they are not there."""
    if not (folder / "results.json").exists():
        write_results(folder, Results({}, {}, {}, make(folder.absolute() / "run")))
    return read_results(folder).tasks


def agree(ours: Mapping[str, TaskResult], theirs: Mapping[str, TaskResult], report: Path) -> None:
    """Asserts that at least 99 % of the choices are the same, and every likelihood near; says how near."""
    told: dict[str, Any] = {}
    same, items, far = 0, 0, 0.0
    for name, result in ours.items():
        ours_by_id = {one.id: one for one in result.outcomes}
        pairs = [(ours_by_id[one.id], one) for one in theirs[name].outcomes]
        assert len(pairs) >= min(len(result.outcomes), FIRST)
        assert (*result.unanswered, *theirs[name].unanswered) == ()
        gaps = [abs(a - b) for one, other in pairs for a, b in zip(one.nats, other.nats, strict=True)]
        alike = sum(one.prediction == other.prediction for one, other in pairs)
        scores = {
            metric: (np.mean([one.scores[metric] for one, _ in pairs]), found.mean)
            for metric, found in theirs[name].metrics.items()
        }
        told[name] = {"items": len(pairs), "same": alike, "max_nats": max(gaps), "scores": scores}
        same, items, far = same + alike, items + len(pairs), max(far, *gaps)
    write_json(report, {"same": same, "items": items, "max_nats": far, "tasks": told})
    print(f"\n{same} of {items} choices are the same; likelihoods at most {far:.2e} nats apart")
    assert same >= 0.99 * items
    assert far <= NEAR


INSIDE = """
import sys
sys.path.append({packages!r})
from intaglio.cli.main import main
main()
"""
"""Our command where lm-eval can be imported; what we have ourselves is ours."""


@needs_eval
class TestCommand:
    def test_by_ourselves_through_our_api_and_inside(self, smollm2_dir: Path, tmp_path: Path) -> None:
        """`intaglio eval`, and `--with lm-eval` in an environment of its own and in ours, as users run them."""
        rows = [{"id": str(i), "question": q, "choices": c, "answer": a} for i, (q, c, a) in enumerate(QUESTIONS)]
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        (packages,) = (EVAL.parents[1] / "lib").glob("python*/site-packages")
        (tmp_path / "inside.py").write_text(INSIDE.format(packages=str(packages)))
        ours, inside = [sys.executable, "-m", "intaglio.cli.main"], [sys.executable, str(tmp_path / "inside.py")]
        asked = ["eval", str(smollm2_dir), "--tasks", str(tmp_path / "rows.jsonl"), "--dtype", "float32"]
        theirs = ["--with", "lm-eval"]
        doors = {"ours": ours + asked, "API": ours + asked + theirs, "inside": inside + asked + theirs}
        told = {name: evaluated(command, tmp_path / name) for name, command in doors.items()}
        assert told["inside"].versions["lm_eval"] == told["API"].versions["lm_eval"]
        assert told["inside"].model["model_hash"] == told["API"].model["model_hash"] == told["ours"].model["model_hash"]
        for name in ("API", "inside"):
            agree(told["ours"].tasks, told[name].tasks, tmp_path / f"{name}.json")
        assert (tmp_path / "API" / "lm-eval" / "texts" / "log.txt").exists()
        assert not (tmp_path / "inside" / "lm-eval" / "texts").exists()


def evaluated(command: list[str], out: Path) -> Results:
    """The results of a command."""
    subprocess.run([*command, "--out", str(out)], check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    return read_results(out)


QUESTIONS: list[tuple[str, list[str], int]] = [
    ("The capital of France is", ["Paris", "London", "Rome"], 0),
    ("Two plus two equals", ["five", "four", "nine"], 1),
    ("The opposite of hot is", ["cold", "warm"], 0),
    ("Naïve café — “quotes”, 漢字, 🙂:", ["fine", "漢字", "🙂", "2020-01-01"], 0),
]

FORMS: tuple[tuple[str, Callable[[str, str], str]], ...] = (
    ("as asked", lambda right, other: f"ANSWER: {right}"),
    ("in words", lambda right, other: f"The answer is {right}."),
    ("dressed", lambda right, other: f"**ANSWER: ({right})**"),
    ("a letter alone", lambda right, other: right),
    ("the instruction first", lambda right, other: f"I reply in the form 'ANSWER: [LETTER]'.\nANSWER: {right}"),
    ("a change of mind", lambda right, other: f"ANSWER: {other}\nNo, wait.\nANSWER: {right}"),
    ("with a reason", lambda right, other: f"ANSWER: {right}, not {other}"),
    ("lower case", lambda right, other: f"answer: {right.lower()}"),
    ("nothing but the instruction", lambda right, other: "My answer will be in the form 'ANSWER: [LETTER]'."),
    ("no letter", lambda right, other: "I do not know."),
)
"""Ways to answer; the letter that is meant, and another."""
READ_OTHERWISE = {"lower case"}
"""Where EvalScope takes another answer than we do."""


@needs_eval
class TestEvalScope:
    def test_a_server_that_is_right_on_six_of_ten(self, tmp_path: Path) -> None:
        """Every form of an answer is right on six of ten, as long as its letter is read."""
        sheet = kind_sheet(kind_task(100, seed=1))
        script = {question.said or "": _scripted(i, question.item) for i, question in enumerate(sheet.questions)}
        with scripted_answers(lambda asked: script[asked]) as url:
            theirs = EvalScope(tmp_path / "theirs", url, "scripted", 8, EVAL).run([sheet])[0]["kinds"]
            ours = written_by(url, sheet, tmp_path / "ours")
        assert [one.text for one in ours.outcomes] == [one.text for one in theirs.outcomes]
        forms = [FORMS[i % len(FORMS)][0] for i in range(100)]
        unlike = compare(ours, theirs, forms)
        assert set(unlike.values()) <= READ_OTHERWISE, unlike
        says_one = [i for i, form in enumerate(forms) if form not in ("nothing but the instruction", "no letter")]
        assert np.mean([ours.outcomes[i].scores["acc"] for i in says_one]) == 0.6
        assert all(ours.outcomes[i].scores["acc"] == 0 for i in range(100) if i not in says_one)

    def test_answers_in_words(self, tmp_path: Path) -> None:
        """`general_qa`: the same texts; ROUGE is the same where no punctuation clings to a word."""
        items = tuple(
            Item(str(i), f"Say it, number {i}.", references=(f"the cat number {i} sat on the mat",)) for i in range(10)
        )
        said = ("the cat number {} sat on the mat", "a cat sat", "The cat number {} sat on the mat.", "no")
        script = {item.question: said[i % len(said)].format(i) for i, item in enumerate(items)}
        settings = Settings(chat=True, metrics=("rougeL",))
        (unit,) = units_of([Task("said", "generation", items)], settings)
        sheet = sheet_of(unit, settings)
        with scripted_answers(lambda asked: script[asked]) as url:
            theirs = EvalScope(tmp_path / "theirs", url, "scripted", 8, EVAL).run([sheet])[0]["said"]
            ours = evaluate([unit], RemoteSubject(Asker(url)), settings, tmp_path / "ours").tasks["said"]
        assert [one.text for one in ours.outcomes] == [one.text for one in theirs.outcomes] == list(script.values())
        for one, other in zip(ours.outcomes, theirs.outcomes, strict=True):
            if one.text.islower() and not one.text.endswith("."):
                assert other.scores["rouge_l_f"] == pytest.approx(one.scores["rougeL"], abs=1e-6)
            else:
                assert other.scores["rouge_l_f"] < one.scores["rougeL"] == 1

    def test_an_adapter_that_learned_the_form(self, smollm2_dir: Path, runs: Path) -> None:
        """SmolLM2 alone names no letter there and scores 0, which proves nothing; the adapter answers in the form."""
        held, learned = kind_task(60, seed=2), kind_task(480, seed=3)
        known = {(item.stem, item.choices) for item in held.items}
        rest = tuple(item for item in learned.items if (item.stem, item.choices) not in known)
        write_chats(runs / "kinds.jsonl", replace(learned, items=rest))
        if not (runs / "kinds" / "adapter").exists():
            told = (f"out={runs / 'kinds'}", f"data={runs / 'kinds.jsonl'}", *RECIPE)
            assert start("recipes/lora-smollm2.yaml", *told).wait() == 0
        sheet = kind_sheet(held)
        alone = ("--dtype", "float32", "--deterministic", "--threads", "1")  # in bf16 two letters may be all but a tie
        options = ("--served-model-name", "base", "--adapter", f"m={runs / 'kinds' / 'adapter'}", *alone)
        with served_model(smollm2_dir, *options, log=runs / "kinds.log") as server:
            theirs = kept(runs / "kinds-theirs", lambda at: EvalScope(at, server.url, "m", 4, EVAL).run([sheet])[0])
            ours = written_by(server.url, sheet, runs / "kinds-ours", "m")
        found = theirs["kinds"]
        assert [one.text for one in ours.outcomes] == [one.text for one in found.outcomes]
        assert compare(ours, found, ["" for _ in ours.outcomes]) == {}
        acc = ours.metrics["acc"]
        print(f"\nacc {acc.mean:.3f} ({acc.low:.3f} to {acc.high:.3f}), valid {ours.metrics['valid'].mean:.3f}")
        assert ours.metrics["valid"].mean >= 0.95
        assert acc.low > 0.1


RECIPE = ("validation=0", "answers=null", "steps=60", "micro_batch=8", "max_length=256", "save_every=0")


def _scripted(number: int, item: Item) -> str:
    """Six of ten of each form mean the right letter."""
    form = FORMS[number % len(FORMS)][1]
    right = item.references[0]
    wrong = next(letter for letter in "ABCD" if letter != right)
    return form(right, wrong) if number // len(FORMS) % 10 < 6 else form(wrong, right)


def written_by(url: str, sheet: Sheet, folder: Path, name: str | None = None) -> TaskResult:
    """Our own evaluation of what EvalScope asks, in the same words."""
    unit = Unit(sheet.task.name, sheet.task, tuple(() for _ in sheet.task.items))
    settings = Settings(chat=True, max_tokens=sheet.max_tokens)
    return evaluate([unit], RemoteSubject(Asker(url), name), settings, folder).tasks[sheet.task.name]


def compare(ours: TaskResult, theirs: TaskResult, forms: list[str]) -> dict[str, str]:
    """Items that another answer was taken for, and in which form they were answered; says so."""
    assert (*ours.unanswered, *theirs.unanswered) == ()
    pairs = list(zip(ours.outcomes, theirs.outcomes, forms, strict=True))
    for one, other, form in pairs:
        if _read(one) != _read(other):
            print(f"\n{form}: {one.text!r} is read as {one.prediction!r} here, {other.prediction!r} there")
        if _read(one) == _read(other):
            assert one.scores["acc"] == other.scores["acc"]
    same = sum(_read(one) == _read(other) for one, other, _ in pairs)
    print(f"\n{same} of {len(pairs)} answers are read alike")
    return {one.id: form for one, other, form in pairs if _read(one) != _read(other)}


def _read(outcome: Outcome) -> str:
    return json.dumps(outcome.prediction.strip())
