"""Figures that measure: ranks of this machine beside the plan, sleeping stages beside the simulation, two tasks."""

from pathlib import Path

import pytest

from intaglio.atlas.busy import busy
from intaglio.atlas.figures.pipelines import Pipelines
from intaglio.atlas.figures.roads import TASKS
from intaglio.atlas.figures.sharding import Sharding
from intaglio.specs import load_yaml
from tiny_figures import beside


def test_real_ranks_hold_what_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    beside(monkeypatch)
    small = Sharding(processes=2, width=32, layers=3, row=64).small()
    for zero, held in small["held"].items():
        planned = small["planned"][zero]
        assert {name: size for name, size in held.items() if name != "rest"} == {
            name: size for name, size in planned.items() if name != "rest"
        }
        assert sum(held.values()) == pytest.approx(sum(planned.values()), rel=0.1)
    moments = [small["held"][zero]["optimizer"] for zero in "013"]
    assert moments[1] == pytest.approx(moments[0] / 2, rel=0.01)
    assert moments[2] == moments[1]


def test_ranks_that_sleep_wait_no_less_than_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    beside(monkeypatch)
    figure = Pipelines(ranks=2, micro_batches=4, seconds=0.004, rounds=2)
    data = figure.data()
    for name, one in data["simulated"].items():
        assert one["bubble"] <= data["measured"][name] < 1
    kinds = [sorted(slot[:3] for slot in row) for row in data["timed"]["rows"]]
    assert kinds == [sorted(slot[:3] for slot in row) for row in data["simulated"]["1f1b"]["rows"]]


def test_the_roads_are_those_of_the_recipes() -> None:
    for name, task in TASKS.items():
        recipe = load_yaml(Path(__file__).parents[2] / "recipes" / "advice" / f"{name}.yaml")
        assert recipe["train"]["path"] == task["rows"]
        assert {key: recipe[key] for key in ("fields", "question", "answer")} == {
            key: task[key] for key in ("fields", "question", "answer")
        }
        assert recipe.get("document") == task.get("document")


def test_a_busy_machine_is_told() -> None:
    assert busy(0.1) == ("", "")
    assert "a load of 2.5 a core" in busy(2.5).en
