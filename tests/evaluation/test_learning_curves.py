"""Curves: of training runs from their logs, and of shots from results; with a look at the pictures."""

import math
from pathlib import Path
from typing import Any

import pytest

from intaglio.evaluation.learning_curves import ends, learning_curves
from intaglio.evaluation.results import Outcome, Results, TaskResult
from intaglio.evaluation.shots import draw_shots, shot_curves

LOG: list[dict[str, Any]] = [
    {"step": 1, "loss": 3.0, "learning_rate": 0.1},
    {"step": 2, "loss": 2.0, "grad_norm": None},
    {"step": 2, "eval_loss": 2.5, "eval_accuracy": 0.25},
    {"step": 3, "loss": 2.25},
    {"step": 3, "eval_loss": math.nan, "sample": "text"},
]


def test_every_measured_thing_is_a_curve() -> None:
    curves = learning_curves({"a": LOG, "b": LOG[:1]})
    assert curves == {
        "loss": {"a": [(1, 3), (2, 2), (3, 2.25)], "b": [(1, 3)]},
        "eval_loss": {"a": [(2, 2.5)]},
        "eval_accuracy": {"a": [(2, 0.25)]},
    }
    assert [*curves][:2] == ["loss", "eval_loss"]
    end = {"steps": 3, "last": 2.25, "lowest": 2, "lowest_step": 2, "highest": 3, "highest_step": 1}
    assert ends(curves)["loss"]["a"] == end


def run(name: str, right: dict[int, int]) -> Results:
    tasks = {}
    for shots, count in right.items():
        outcomes = [
            Outcome(f"t@{shots}", str(i), "", "", "", "", (), {"acc": float(i < count), "acc_norm": 0.0})
            for i in range(10)
        ]
        tasks[f"t@{shots}"] = TaskResult("choice", "h", "f", tuple(outcomes))
    tasks["other"] = TaskResult("choice", "h", "f", tuple(outcomes))
    return Results({"name": name}, {}, {}, tasks)


def test_a_curve_of_shots_has_an_interval_at_each_point(tmp_path: Path) -> None:
    curves = shot_curves({"big": run("big", {8: 9, 0: 4, 2: 6}), "small": run("small", {0: 3})})
    assert [*curves] == ["t, acc"]
    assert [(shots, one.mean, one.n) for shots, one in curves["t, acc"]["big"]] == [
        (0, 0.4, 10),
        (2, 0.6, 10),
        (8, 0.9, 10),
    ]
    assert all(one.low < one.mean < one.high for _, one in curves["t, acc"]["big"])
    assert len(curves["t, acc"]["small"]) == 1
    pytest.importorskip("matplotlib")
    draw_shots(tmp_path / "shots.png", curves)
    assert (tmp_path / "shots.png").read_bytes().startswith(b"\x89PNG")


def test_one_number_of_shots_is_no_curve() -> None:
    assert shot_curves({"a": run("a", {0: 1})}) == {}
