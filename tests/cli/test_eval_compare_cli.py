"""`intaglio eval --compare`: evaluations item by item, trainings by their logs."""

import json
from pathlib import Path

import pytest

from intaglio.evaluation.results import Outcome, Results, TaskResult, write_results
from running import Run


def evaluation(folder: Path, scores: list[float], names: tuple[str, ...] = ("t",), digest: str = "h") -> Path:
    tasks = {}
    for name in names:
        outcomes = [Outcome(name, f"q{i}", "", "", "", "", (), {"acc": one}) for i, one in enumerate(scores)]
        tasks[name] = TaskResult("choice", digest, "f", tuple(outcomes))
    write_results(folder, Results({"name": folder.name}, {}, {}, tasks))
    return folder


def training(folder: Path, losses: list[float]) -> Path:
    folder.mkdir()
    lines = [{"step": step, "loss": loss} for step, loss in enumerate(losses, 1)]
    lines.append({"step": len(losses), "eval_loss": losses[-1] + 0.5})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_evaluations_are_compared_item_by_item(run: Run, tmp_path: Path) -> None:
    base = evaluation(tmp_path / "base", [1.0] * 2 + [0.0] * 10)
    better = evaluation(tmp_path / "better", [0.0] + [1.0] * 11)
    ran = run("eval", "--compare", base, better / "results.json", "--json")
    assert ran.status == 0, ran.err
    (one,) = json.loads(ran.out)["differences"]
    assert (one["run"], one["base"], one["items"]) == ("better", "base", 12)
    assert one["difference"][0] == pytest.approx(0.75)
    assert one["lost"] == ["q0"]
    assert one["p"] == pytest.approx(2 * 12 / 2**11)
    ran = run("eval", "--compare", base, better)
    assert "+0.750" in ran.out
    assert "t acc, better: right here alone: 10 (q2, q3, q4, q5, q6, q7, q8, q9 and 2 more)" in ran.out
    assert "t acc, better: right in base alone: 1 (q0)" in ran.out


def test_several_numbers_of_shots_are_drawn(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    one = evaluation(tmp_path / "one", [1.0, 0.0], ("t@0", "t@4"))
    ran = run("eval", "--compare", one, "--out", tmp_path / "out")
    assert ran.status == 0, ran.err
    assert (tmp_path / "out" / "shots.png").read_bytes().startswith(b"\x89PNG")
    assert "shots.png" in ran.out


def test_trainings_are_compared_by_their_logs(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    runs = [training(tmp_path / "a", [3.0, 2.0, 2.5]), training(tmp_path / "b", [3.0, 1.0])]
    ran = run("eval", "--compare", *runs, "--out", tmp_path / "out", "--json")
    assert ran.status == 0, ran.err
    told = json.loads(ran.out)
    assert told["curves"]["loss"]["a"]["lowest"] == 2
    assert told["curves"]["eval_loss"]["b"] == pytest.approx(
        {"steps": 2, "last": 1.5, "lowest": 1.5, "lowest_step": 2, "highest": 1.5, "highest_step": 2}
    )
    assert Path(told["picture"]).read_bytes().startswith(b"\x89PNG")
    assert "eval_loss" in run("eval", "--compare", *runs, "--out", tmp_path / "out").out


def test_mistakes(run: Run, tmp_path: Path) -> None:
    one, other = evaluation(tmp_path / "one", [1.0]), evaluation(tmp_path / "other", [1.0], digest="x")
    trained = training(tmp_path / "trained", [1.0])
    for runs, message in (
        ((one, other), "other: t has other items or another layout than in one"),
        ((one, trained), "evaluations and trainings have nothing to compare"),
        ((one,), "one run has nothing to be compared with"),
        ((one, one), "a run is named twice"),
        ((tmp_path,), "holds neither results.json of an evaluation nor log.jsonl"),
    ):
        assert message in run("eval", "--compare", *runs).refusal
    assert "one model at a time" in run("eval", one, other).refusal
