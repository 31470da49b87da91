"""GRPO as TRL computes it on the same log-probabilities, and the cases in which its trainer went wrong."""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from intaglio.training.objectives.actions import Actions, Reader
from intaglio.training.objectives.grpo import GRPO
from intaglio.training.objectives.policy_loss import Aggregation, RatioOf
from intaglio.training.objectives.watch import Watch
from intaglio.training.rl.rollouts import RolloutBatch, batch_of, weighed
from tiny_rollouts import policy, recorded_rollout

LENGTHS, LONGEST, MASK = (3, 1, 5, 2), 8, torch.arange(5) < torch.tensor([3, 1, 5, 2])[:, None]
HOW = {"epsilon": 0.2, "epsilon_high": 0.28, "beta": 0.04}


def padded(flat: Tensor) -> Tensor:
    """(n,) -> (D, T)"""
    return torch.zeros(MASK.shape).masked_scatter(MASK, flat)


class Told(Reader):
    """Reads what it was told, with gradient."""

    def __init__(self, log_probs: Tensor) -> None:
        super().__init__()
        self.told = log_probs

    def __call__(self, model: Any, batch: RolloutBatch, *, plain: bool = False) -> Actions:
        nothing = self.told.new_empty(0)
        return Actions(self.told, nothing, nothing, nothing)


def trls(now: Tensor, batch: RolloutBatch, by_answer: Tensor, loss_type: str, level: str, tokens: float) -> Any:
    """TRL's own function on a trainer that has nothing else."""
    from trl import GRPOTrainer

    accelerator = SimpleNamespace(num_processes=1, reduce=lambda x, reduction: x, gather=lambda x: x)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: (padded(now), torch.zeros(MASK.shape), None),
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        accelerator=accelerator,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=level,
        beta=HOW["beta"],
        loss_type=loss_type,
        epsilon_low=HOW["epsilon"],
        epsilon_high=HOW["epsilon_high"],
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        use_vllm=False,
        max_completion_length=LONGEST,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
    )
    ids = torch.zeros(MASK.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones(4, 1),
        "completion_ids": ids,
        "completion_mask": MASK.long(),
        "advantages": by_answer,
        "old_per_token_logps": padded(batch.log_probs),
        "ref_per_token_logps": padded(batch.reference),
        "num_items_in_batch": torch.tensor(tokens),
    }
    return GRPOTrainer._compute_loss(trainer, None, inputs), trainer._metrics["train"]


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo"])
def test_the_loss_and_its_gradient_are_trls(loss_type: Aggregation, level: RatioOf) -> None:
    by_answer = torch.tensor([0.8, -1.2, 0.3, -0.4])
    rollout = recorded_rollout(3, LENGTHS)
    rollout = type(rollout)(
        **{**rollout.tensors(), "advantages": by_answer.repeat_interleave(rollout.answer_lengths)},
        wheres=rollout.wheres,
    )
    (batch,) = weighed([batch_of(rollout, range(4))], loss_type, LONGEST, rollout_share=13.0)
    noise = torch.randn(len(batch.log_probs), generator=torch.Generator().manual_seed(1)) * 0.4
    now = (batch.log_probs + noise).requires_grad_()
    found = GRPO(Told(now), Watch(), **HOW, ratio_of=level)(policy(), batch)
    ours = found.total / batch.num_targets
    theirs, metrics = trls(now, batch, by_answer, loss_type, level, tokens=13.0)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    gradients = [torch.autograd.grad(loss, now, retain_graph=True)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-4)
    assert found.metrics["kl"].value == pytest.approx(metrics["kl"][0], abs=1e-5)
    if level == "token":
        for name in ("low_mean", "high_mean", "region_mean"):
            assert found.metrics[f"clip_ratio/{name}"].value == pytest.approx(metrics[f"clip_ratio/{name}"][0])
    for name in ("low_min", "high_max"):  # of the answer with the fewest, and the most
        assert found.metrics[f"clip_ratio/{name}"].value == pytest.approx(metrics[f"clip_ratio/{name}"][0])


def test_on_its_own_answers_the_mean_over_answers_is_0_and_its_gradient_is_not() -> None:
    """A mean over tokens is 0 for equal lengths alone (TRL's issue 2995)."""
    by_answer = torch.tensor([0.8, -0.8, 0.5, -0.5])
    rollout = recorded_rollout(4, LENGTHS)
    rollout = type(rollout)(
        **{**rollout.tensors(), "advantages": by_answer.repeat_interleave(rollout.answer_lengths)},
        wheres=rollout.wheres,
    )
    model = policy()
    with torch.no_grad():
        drawn = Reader()(model, batch_of(rollout, range(4))).log_probs
    rollout = type(rollout)(**{**rollout.tensors(), "log_probs": drawn}, wheres=rollout.wheres)
    for how, zero in (("grpo", True), ("dapo", False)):
        (batch,) = weighed([batch_of(rollout, range(4))], how, LONGEST, rollout_share=11.0)  # type: ignore[arg-type]
        model.zero_grad()
        found = GRPO(Reader(), Watch())(model, batch)
        found.total.backward()
        assert (abs(found.total.item()) < 1e-5) is zero
        assert found.metrics["clip_ratio/region_mean"].value == 0
        assert model.lm_head.weight.grad is not None
        assert model.lm_head.weight.grad.abs().max() > 1e-3


def test_equal_rewards_teach_nothing() -> None:
    rollout = recorded_rollout(5, LENGTHS)
    rollout = type(rollout)(**{**rollout.tensors(), "advantages": torch.zeros(11)}, wheres=rollout.wheres)
    model = policy()
    GRPO(Reader(), Watch())(model, batch_of(rollout, range(4))).total.backward()
    assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)
