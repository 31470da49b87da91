"""The check of plans on a GPU, as far as it goes without one: the list, the words, and the steps that it takes."""

import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpu import plan_check
from gpu.plan_check import CONFIGURATIONS, GIB, SMALL, Seen, rehearsed, told
from intaglio.training.memory.imagined import imagined_ranks

SCRIPT = Path(plan_check.__file__)


def test_twenty_configurations_are_planned_and_differ_in_everything() -> None:
    assert len({one.name for one in CONFIGURATIONS}) == len(CONFIGURATIONS) == 20
    peaks = [one.plan.peak_bytes for one in CONFIGURATIONS]
    assert min(peaks) > GIB
    assert max(peaks) < 20 * GIB  # any card of 24 GB can check them
    for varied in ("hidden", "layers", "vocab", "sequence", "micro_batch", "trains", "dtype", "checkpointing"):
        assert len({getattr(one, varied) for one in CONFIGURATIONS}) > 1, varied
    assert {one.parallel.zero for one in CONFIGURATIONS if one.parallel.dp > 1} == {1, 2, 3}
    assert any(one.parallel.tp > 1 for one in CONFIGURATIONS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which the check is for")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out == "torch finds no GPU here: nothing is measured\n"


@pytest.mark.parametrize(
    ("trains", "layout"),
    [("all", {}), ("qlora", {}), ("all", {"dp": 4, "zero": 3, "tp": 2}), ("lora", {"dp": 4, "zero": 2})],
)
def test_the_steps_that_are_measured(trains: plan_check.Trains, layout: dict[str, int]) -> None:
    """Whatever a fake group has not written is no number: a step is taken all the same."""
    one = replace(SMALL, trains=trains, layout=layout, accumulation=2)
    with imagined_ranks(one.parallel) as ranks:
        assert rehearsed(one, ranks, "cpu").loop.step().number == 2


def test_a_point_is_told_with_its_sign() -> None:
    one = CONFIGURATIONS[0]
    line, near = told(one, 102 * GIB, Seen(100 * GIB, 2 * GIB, GIB // 2, 1.5))
    assert near
    assert line.split()[:6] == ["+2.00%", "102.000", "100.000", "2.000", "0.500", "1.5"]
    line, near = told(one, 96 * GIB, Seen(100 * GIB, 0, 0, 1.5))
    assert not near
    assert line.startswith(" -4.00%")
    assert line.endswith("BEYOND 3 %")


@pytest.mark.parametrize(("error", "status"), [(0.02, 0), (-0.04, 1)])
def test_a_point_beyond_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: float, status: int
) -> None:
    """On a machine that seems to have a GPU; one point does not fit into it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (12 * GIB, 16 * GIB))
    monkeypatch.setattr(
        plan_check, "measured", lambda one: Seen(round(one.plan.peak_bytes / (1 + error)), GIB, GIB, 0.1)
    )
    chosen = [min(CONFIGURATIONS, key=lambda one: one.plan.peak_bytes), CONFIGURATIONS[10]]
    large = max(CONFIGURATIONS, key=lambda one: one.plan.peak_bytes)
    assert plan_check.main([chosen[0], large]) == status
    said = capsys.readouterr().out
    assert f"{error:+.2%}" in said
    assert "1 left out" in said


@pytest.mark.gpu
def test_every_point_is_within_three_percent() -> None:
    ended = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
