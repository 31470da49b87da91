"""What a step tells beside its loss: joined over its micro-batches, logged under any name, evaluated likewise."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from intaglio.training.batching.batches import Batch
from intaglio.training.log import Log
from intaglio.training.loop import Loop, evaluate
from intaglio.training.objectives.metrics import Least, Mean, Most, Variance, joined
from intaglio.training.objectives.objective import Loss
from intaglio.training.stepping.master import MasterWeights
from intaglio.training.stepping.schedule import ScheduleSpec


class _Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))


class _Stream:
    """Micro-batches of one value each, worth 0.5 and 1.5 targets."""

    def step(self, accumulation: int) -> list[Batch]:
        return [_batch(2.0, 0.5), _batch(4.0, 1.5)]


def _batch(value: float, targets: float) -> Batch:
    ids = torch.tensor([[int(value)]])
    return Batch(ids, ids, [1], ids, targets, ["here"])


def _objective(model: nn.Module, batch: Batch) -> Loss:
    value = batch.ids.sum().float()
    metrics: dict[str, Any] = {"rewards/mean": Mean.of(value), "lowest": Least(value.item()), "none": Mean(0.0, 0)}
    if value > 3:
        metrics["only/here"] = Mean(3.0, 2)
    weight: Tensor = model.weight  # type: ignore[assignment]
    return Loss((weight.sum() + value) * batch.num_targets, metrics=metrics)


def test_joined_metrics_do_not_depend_on_the_cut() -> None:
    values = torch.tensor([1.0, 5.0, -2.0, 8.0])
    whole = joined([{"mean": Mean.of(values), "least": Least(-2.0), "most": Most(8.0)}])
    parts: list[dict[str, Any]] = [
        {"mean": Mean.of(one), "least": Least(float(one.min())), "most": Most(float(one.max()))}
        for one in (values[:1], values[1:])
    ]
    assert joined(parts) == whole == {"mean": 3.0, "least": -2.0, "most": 8.0}


def test_a_variance_is_torchs_however_it_is_cut() -> None:
    values = 1 + 1e-4 * torch.tensor([1.0, 5.0, -2.0, 8.0, 8.5], dtype=torch.float64)
    for cuts in ([5], [0, 5], [1, 4], [2, 2, 1]):
        found = joined([{"var": Variance.of(part)} for part in values.split(cuts)])
        assert found["var"] == pytest.approx(values.var().item(), rel=1e-9)
    assert joined([{"var": Variance.of(values[:1])}]) == {}  # one value varies from none


def test_a_step_has_the_metrics_of_its_micro_batches_and_fractions_of_targets(tmp_path: Path) -> None:
    model = _Tiny()
    masters = MasterWeights(model, torch.float32)
    optimizers = [torch.optim.SGD([{"params": masters.parameters(), "peak": 0.1}], lr=0.1)]
    stream: Any = _Stream()
    step = Loop(model, masters, _objective, stream, optimizers, ScheduleSpec(), steps=1, accumulation=2).step()
    assert step.targets == 2.0
    assert step.loss == pytest.approx((2 * 0.5 + 4 * 1.5) / 2)
    assert step.metrics == {"rewards/mean": 3.0, "lowest": 2.0, "only/here": 1.5}
    with Log(tmp_path / "log.jsonl", 1, 1, 1, 1, quiet=True) as log:
        log.step(step)
    line = json.loads((tmp_path / "log.jsonl").read_text())
    assert (line["rewards/mean"], line["lowest"], line["only/here"]) == (3.0, 2.0, 1.5)
    assert "none" not in line


def test_targets_that_sum_to_less_than_one_are_divided_by_all_the_same() -> None:
    assert evaluate(_Tiny(), _objective, [_batch(2.0, 0.25)]).loss == pytest.approx(2.0)


def test_an_evaluation_is_logged_with_its_metrics() -> None:
    found = evaluate(_Tiny(), _objective, [_batch(2.0, 1.0), _batch(4.0, 1.0)])
    assert found.lines() == {"eval_loss": 3.0, "eval_rewards/mean": 3.0, "eval_lowest": 2.0, "eval_only/here": 1.5}
