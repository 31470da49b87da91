"""The loop: a step is a step of the plain loss, however it is split, and a resumed run is the uninterrupted one."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from intaglio.data.examples import Example
from intaglio.data.store import InMemory
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.specs import DecoderSpec
from intaglio.training.batching.batches import BatchStream, make_batch
from intaglio.training.loop import Loop, Step, evaluate
from intaglio.training.objectives.language_model import LanguageModel
from intaglio.training.state import last_checkpoint, load_state, prune, save_state
from intaglio.training.stepping.master import MasterWeights
from intaglio.training.stepping.optimizer import OptimizerSpec, build_optimizers
from intaglio.training.stepping.schedule import ScheduleSpec
from tiny_specs import ZOO


def examples(count: int = 40, seed: int = 0) -> list[Example]:
    """Ragged rows, some of which learn only a part, some nothing at all."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        length = int(rng.integers(2, 20))
        supervised = rng.random(length) < rng.choice([0.0, 0.4, 1.0])
        supervised[0] = False
        made.append(Example(rng.integers(0, 64, length).astype(np.int32), supervised, f"rows.jsonl:{number + 1}"))
    return made


def model_of(spec: DecoderSpec = ZOO["MHA"], seed: int = 0) -> Decoder:
    torch.manual_seed(seed)
    return Decoder(spec)


def loop_of(
    model: Decoder, *, rows: int = 2, accumulation: int = 1, dtype: torch.dtype = torch.float32, kind: str = "adamw"
) -> Loop:
    masters = MasterWeights(model, dtype)
    spec = OptimizerSpec.model_validate({"kind": kind, "learning_rate": 1e-2})
    stream = BatchStream(InMemory(examples()), rows, max_length=24, packing="none", seed=1)
    return Loop(
        model, masters, LanguageModel(chunk=7), stream, build_optimizers(spec, masters.masters), ScheduleSpec(warmup=2),
        steps=20, accumulation=accumulation,
    )  # fmt: skip


def steps(loop: Loop, count: int) -> list[Step]:
    return [loop.step() for _ in range(count)]


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_loss_is_the_plain_loss_of_each_row_alone() -> None:
    model, rows = model_of(), examples(9)
    total, count = 0.0, 0
    for row in rows:
        ids = torch.from_numpy(row.ids.astype(np.int64))[None]
        labels = torch.where(torch.from_numpy(row.supervised)[None], ids, -100)[:, 1:]
        total += F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), labels.flatten(), reduction="sum").item()
        count += int((labels != -100).sum())
    batch = make_batch(rows)
    assert batch.num_targets == count
    assert LanguageModel(chunk=5)(model, batch).total.item() == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize(("rows", "accumulation"), [(4, 2), (2, 4), (1, 8)])
def test_splitting_a_step_changes_nothing(rows: int, accumulation: int) -> None:
    """Case 1: means of means would differ, since the rows have different numbers of targets."""
    whole, split = loop_of(model_of(), rows=8), loop_of(model_of(), rows=rows, accumulation=accumulation)
    for one, other in zip(steps(whole, 3), steps(split, 3), strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-5)
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-4)
        assert (other.tokens, other.targets) == (one.tokens, one.targets)
    for name, parameter in weights(whole.model).items():
        torch.testing.assert_close(weights(split.model)[name], parameter, rtol=1e-3, atol=1e-4)


def test_case_1_in_numbers() -> None:
    """One label of NLL 4 and three of NLL 1 are 7/4, never the mean of means 2.5."""

    class Fixed:
        def __call__(self, model: nn.Module, batch: object) -> object:
            from intaglio.training.objectives.objective import Loss

            parameter = next(model.parameters())
            value = 4.0 if batch.num_targets == 1 else 3.0  # type: ignore[attr-defined]
            return Loss(value + 0 * parameter.sum())

    class Two:
        def step(self, accumulation: int) -> Sequence[object]:
            one = Example(np.array([1, 2], np.int32), np.array([False, True]), "a")
            three = Example(np.array([1, 2, 3, 4], np.int32), np.array([False, True, True, True]), "b")
            return [make_batch([one]), make_batch([three])]

    loop = loop_of(model_of())
    loop.objective, loop.stream = Fixed(), Two()  # type: ignore[assignment]
    assert loop.step().loss == pytest.approx(1.75)


def test_a_micro_batch_without_targets_is_nothing() -> None:
    model = model_of()
    silent = Example(np.array([3, 4, 5], np.int32), np.zeros(3, bool), "a")
    loss = LanguageModel()(model, make_batch([silent])).total
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is None or (p.grad == 0).all() for p in model.parameters())


def test_one_step_is_that_of_plain_pytorch() -> None:
    """AdamW with decay on matrices only, clipped, against a loop written out."""
    loop, plain = loop_of(model_of(), rows=4), model_of()
    batch = BatchStream(InMemory(examples()), 4, max_length=24, packing="none", seed=1).step(1)[0]
    decay = [p for n, p in plain.named_parameters() if p.ndim == 2 and not n.startswith(("embed", "lm_head"))]
    rest = [p for p in plain.parameters() if not any(p is q for q in decay)]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-2 / 2, betas=(0.9, 0.95)
    )
    (LanguageModel()(plain, batch).total / batch.num_targets).backward()
    norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
    optimizer.step()
    assert loop.step().grad_norm == pytest.approx(norm.item(), rel=1e-5)
    for name, parameter in weights(plain).items():
        torch.testing.assert_close(weights(loop.model)[name], parameter, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_resumed_is_uninterrupted(tmp_path: Path, dtype: torch.dtype, kind: str) -> None:
    whole = loop_of(model_of(), dtype=dtype, kind=kind)
    losses = [step.loss for step in steps(whole, 9)]
    first = loop_of(model_of(), dtype=dtype, kind=kind)
    steps(first, 4)
    save_state(tmp_path, 4, first.masters, list(first.optimizers), {"cursor": first.stream.state()})
    second = loop_of(model_of(seed=7), dtype=dtype, kind=kind)
    path = last_checkpoint(tmp_path)
    assert path is not None
    state = load_state(path, second.masters, list(second.optimizers))
    second.stream.load_state(state["cursor"])
    second.done = state["step"]
    assert [step.loss for step in steps(second, 5)] == losses[4:]
    assert same(weights(second.model), weights(whole.model))
    assert same({**second.masters.masters}, {**whole.masters.masters})


def test_only_the_last_checkpoints_stay(tmp_path: Path) -> None:
    loop = loop_of(model_of())
    for number in (1, 2, 3):
        save_state(tmp_path, number, loop.masters, list(loop.optimizers), {})
    prune(tmp_path, 2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000002", "step-00000003"]


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    loop = loop_of(model_of())
    path = save_state(tmp_path, 1, loop.masters, list(loop.optimizers), {})
    (path / "optimizer.safetensors").write_bytes(b"half")
    with pytest.raises(UserError, match="cannot resume"):
        load_state(path, loop.masters, list(loop.optimizers))


def test_bf16_accumulates_in_fp32() -> None:
    """Many small gradients: in bf16 they would vanish beside the first."""
    whole, split = (
        loop_of(model_of(), rows=8, dtype=torch.bfloat16),
        loop_of(model_of(), rows=1, accumulation=8, dtype=torch.bfloat16),
    )
    assert split.step().grad_norm == pytest.approx(whole.step().grad_norm, rel=0.03)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in split.masters.parameters())
    assert all(p.grad is None for p in split.model.parameters())


def test_a_loss_that_is_not_finite_names_its_rows() -> None:
    loop = loop_of(model_of())
    with torch.no_grad():
        next(loop.model.parameters()).fill_(float("nan"))
    with pytest.raises(UserError, match=r"loss of step 1 is not finite") as caught:
        loop.step()
    assert "rows.jsonl:" in str(caught.value)


def test_a_model_learns_a_row_by_heart() -> None:
    model = model_of()
    row = Example(np.arange(12, dtype=np.int32), np.array([False] + [True] * 11), "a")
    loop = loop_of(model)
    loop.stream = BatchStream(InMemory([row]), 1, max_length=24)
    loop.steps = 60
    seen: list[Step] = []

    def note(step: Step) -> bool:
        seen.append(step)
        return True

    loop.run(note)
    assert len(seen) == 60
    assert seen[-1].loss < 0.1 < seen[0].loss
    found = evaluate(model, LanguageModel(), [make_batch([row])], torch.full((64,), 2))
    assert found.loss < 0.1
    assert found.accuracy == 1
    assert found.bits_per_byte == pytest.approx(found.loss / math.log(2) / 2)


@pytest.mark.parametrize(
    "name", [name for name, spec in ZOO.items() if spec.num_active_parameters() < spec.num_parameters()]
)
def test_mixtures_are_balanced(name: str) -> None:
    """The auxiliary loss is 1 where experts are used evenly and is part of the gradient."""
    from intaglio.parts.moe import Router, expert_shares, load_balancing_loss

    model = model_of(ZOO[name])
    LanguageModel()(model, make_batch([row for row in examples() if row.supervised.any()]))
    routers = [module for module in model.modules() if isinstance(module, Router)]
    for router in routers:
        assert expert_shares(router).sum().item() == pytest.approx(1)
        assert load_balancing_loss(router).item() >= 0.9
    (gradient,) = torch.autograd.grad(load_balancing_loss(routers[0]), routers[0].weight)
    assert gradient.abs().sum() > 0
