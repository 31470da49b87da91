"""TensorBoard: what the log says, read back from the event files."""

from pathlib import Path

import pytest

from intaglio.errors import UserError
from intaglio.training import board
from intaglio.training.board import Board, require_tensorboard
from intaglio.training.log import Log
from intaglio.training.loop import Step
from intaglio.training.objectives.mixtures import ExpertUse

reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def step(number: int, loss: float) -> Step:
    experts = (ExpertUse(1.5, (0.25, 0.75)),)
    return Step(number, loss, 0.1, 1.0, 1e-3, 64, 32, 0.5, experts)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = reader.EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_steps_and_evaluations_are_read_back(tmp_path: Path) -> None:
    with Log(tmp_path / "log.jsonl", 2, 1, 1, 1, quiet=True, board=Board(tmp_path / "tensorboard")) as log:
        log.step(step(1, 4.0))
        log.step(step(2, 3.0))
        log.line(step=2, eval_loss=3.5)
        log.line(step=2, prompt="the", sample="sea")
    found = scalars(tmp_path / "tensorboard")
    assert found["loss"] == [(1, 4.0), (2, 3.0)]
    assert found["eval_loss"] == [(2, 3.5)]
    assert found["balance/0"] == [(1, 1.5), (2, 1.5)]
    assert found["expert_shares/0/1"] == [(1, 0.75), (2, 0.75)]
    assert {"learning_rate", "grad_norm", "tokens_per_second"} <= found.keys()
    assert not {"step", "prompt", "sample"} & found.keys()


def test_a_resumed_run_takes_back_what_came_after(tmp_path: Path) -> None:
    for begin, done in ((1, 0), (3, 2)):
        writer = Board(tmp_path, done)
        for number in range(begin, begin + 4):
            writer.write({"step": number, "loss": float(10 * begin + number)})
        writer.close()
    assert scalars(tmp_path)["loss"] == [(1, 11), (2, 12), (3, 33), (4, 34), (5, 35), (6, 36)]


def test_without_tensorboard_a_run_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"tensorboard is missing.*intaglio\[train\]"):
        require_tensorboard()
