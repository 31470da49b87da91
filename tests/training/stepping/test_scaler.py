"""float16: small gradients survive, an overflow costs a step and never a weight, and all of it resumes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from intaglio.data.examples import Example
from intaglio.data.store import InMemory
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.training.batching.batches import Batch, BatchStream
from intaglio.training.log import Log, draw_log, read_log
from intaglio.training.loop import Loop, Step
from intaglio.training.objectives.language_model import LanguageModel
from intaglio.training.objectives.objective import Loss, Objective
from intaglio.training.stepping.master import MasterWeights
from intaglio.training.stepping.optimizer import OptimizerSpec, build_optimizers
from intaglio.training.stepping.scaler import LossScaler
from intaglio.training.stepping.schedule import ScheduleSpec
from tiny_specs import ZOO


def test_the_scale_halves_at_an_overflow_and_doubles_when_there_was_none_for_long() -> None:
    scaler = LossScaler(1024.0, patience=3)
    seen = []
    for overflowed in (False, False, True, False, False, False, False, False, False, True):
        scaler.update(overflowed)
        seen.append(scaler.scale)
    assert seen == [1024, 1024, 512, 512, 512, 1024, 1024, 1024, 2048, 1024]


def test_a_scaler_goes_on_where_another_stood() -> None:
    one, other = LossScaler(8.0, patience=3), LossScaler(patience=3)
    one.update(False)
    one.update(False)
    other.load_state(one.state())
    one.update(False)
    other.update(False)
    assert one.scale == other.scale == 16


class Overflowing:
    """The language model's loss, whose gradient is infinite in the steps named: as float16 would have it."""

    def __init__(self, steps: set[int]) -> None:
        self.plain, self.steps, self.calls = LanguageModel(), steps, 0

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        found = self.plain(model, batch)
        self.calls += 1
        if self.calls in self.steps:
            found.total.register_hook(lambda gradient: gradient * float("inf"))
        return found


def loop_of(objective: Objective, dtype: torch.dtype = torch.float16, scaler: LossScaler | None = None) -> Loop:
    dice = np.random.default_rng(0)
    rows = [Example(dice.integers(0, 64, 12).astype(np.int32), np.arange(12) > 0, f"r:{i}") for i in range(20)]
    torch.manual_seed(0)
    model = Decoder(ZOO["GQA"])
    masters = MasterWeights(model, dtype)
    optimizers = build_optimizers(OptimizerSpec(learning_rate=0.01), masters.masters)
    stream = BatchStream(InMemory(rows), 2, 24)
    return Loop(model, masters, objective, stream, optimizers, ScheduleSpec(), steps=20, scaler=scaler)


def weights(loop: Loop) -> list[torch.Tensor]:
    return [p.detach().clone() for p in loop.masters.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_scale_changes_nothing_but_what_rounds() -> None:
    """In fp32 a power of two is exact."""
    plain, scaled = loop_of(LanguageModel(), torch.float32), loop_of(LanguageModel(), torch.float32, LossScaler(1024.0))
    for _ in range(3):
        one, other = plain.step(), scaled.step()
        assert (one.loss, one.grad_norm) == (other.loss, other.grad_norm)
    assert same(weights(plain), weights(scaled))


def test_an_overflow_skips_the_step_and_halves_the_scale() -> None:
    loop = loop_of(Overflowing({2}), scaler=LossScaler(256.0))
    first = loop.step()
    assert (first.skipped, first.loss_scale, loop.scaler and loop.scaler.scale) == (False, 256, 256)
    before = weights(loop)
    second = loop.step()
    assert (second.number, second.skipped, second.loss_scale) == (2, True, 256)
    assert same(weights(loop), before)
    third = loop.step()
    assert (third.skipped, third.loss_scale) == (False, 128)
    assert not same(weights(loop), before)


def test_float16_learns() -> None:
    loop = loop_of(LanguageModel(), scaler=LossScaler())
    steps = [loop.step() for _ in range(20)]
    assert steps[-1].loss < steps[0].loss
    assert not any(step.skipped for step in steps[8:])


def test_a_small_gradient_survives() -> None:
    """One that float16 rounds to nothing; the scale lifts it, and the master gets it back."""

    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

    def norm(scaler: LossScaler | None) -> float:
        tiny = Tiny()
        masters = MasterWeights(tiny, torch.float16)
        stream: Any = loop_of(LanguageModel()).stream
        optimizers = build_optimizers(OptimizerSpec(), masters.masters)

        def objective(model: nn.Module, batch: Batch) -> Loss:
            return Loss((tiny.weight.sum() * 1e-4).float() * 1e-4 * batch.num_targets)

        return (
            Loop(tiny, masters, objective, stream, optimizers, ScheduleSpec(), steps=1, scaler=scaler).step().grad_norm
        )

    assert norm(None) == 0
    assert norm(LossScaler()) == pytest.approx(2**0.5 * 1e-8, rel=0.01)


def test_what_no_scale_can_help_is_an_error() -> None:
    loop = loop_of(Overflowing(set(range(1, 20))), scaler=LossScaler(4.0))
    assert [loop.step().skipped for _ in range(2)] == [True, True]
    with pytest.raises(UserError, match=r"gradient of step 3 is not finite"):
        loop.step()


def test_a_skipped_step_is_logged_and_drawn(tmp_path: Path) -> None:
    loop = loop_of(Overflowing({2}), scaler=LossScaler(256.0))
    steps: list[Step] = [loop.step() for _ in range(3)]
    with Log(tmp_path / "log.jsonl", 3, 1, 1, 1, quiet=True) as log:
        for step in steps:
            log.step(step)
    lines = read_log(tmp_path / "log.jsonl")
    assert [(line["loss_scale"], line["skipped"]) for line in lines] == [(256, False), (256, True), (128, False)]
    assert lines[1]["grad_norm"] is None
    draw_log(tmp_path / "log.jsonl", tmp_path / "curves.png")
    assert (tmp_path / "curves.png").exists()


def test_resumed_is_uninterrupted(tmp_path: Path) -> None:
    from intaglio.training.state import load_state, save_state

    def make(calls: int = 0) -> Loop:
        objective = Overflowing({2, 5})
        objective.calls = calls
        return loop_of(objective, scaler=LossScaler(256.0, patience=2))

    whole, first, second = make(), make(), make(calls=3)
    for _ in range(8):
        whole.step()
    for _ in range(3):
        first.step()
    assert first.scaler
    assert second.scaler
    state: dict[str, Any] = {"cursor": first.stream.state(), "scaler": first.scaler.state()}
    path = save_state(tmp_path, 3, first.masters, list(first.optimizers), state)
    state = load_state(path, second.masters, list(second.optimizers))
    second.stream.load_state(state["cursor"])
    second.scaler.load_state(state["scaler"])
    second.done = 3
    for _ in range(5):
        second.step()
    assert same(weights(whole), weights(second))
    assert whole.scaler
    assert whole.scaler.state() == second.scaler.state()
