"""Rewards of tokens, GAE, whitening and groups: the numbers of the papers, and what no padding can change."""

import math

import pytest
import torch
from torch import Tensor

from intaglio.training.rl.advantages import (
    gae,
    group_advantages,
    less_for_no_end,
    sums_of,
    token_rewards,
    whiten,
)
from intaglio.training.rl.kl_control import AdaptiveKL, FixedKL, divergence

VALUES, REWARDS = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.0, 0.0, 1.0])


def test_the_score_stands_at_the_last_token_that_was_made() -> None:
    """TRL's issue 3750: [9, 8, eos, pad] with score 1 and no penalty has rewards [0, 0, 1]; none is padded."""
    none = torch.zeros(3)
    assert token_rewards(none, torch.tensor([1.0]), [3], 0.0).tolist() == [0.0, 0.0, 1.0]
    two = token_rewards(torch.ones(5), torch.tensor([1.0, -2.0]), [3, 2], 0.1)
    torch.testing.assert_close(two, torch.tensor([-0.1, -0.1, 0.9, -0.1, -2.1]))


def test_whoever_ended_pays_nothing() -> None:
    scores, ended = torch.tensor([1.0, 1.0]), torch.tensor([True, False])
    assert less_for_no_end(scores, ended, 3.0).tolist() == [1.0, -2.0]
    assert less_for_no_end(scores, ended, None) is scores


def test_gae_gives_the_numbers_worked_out_by_hand() -> None:
    advantages, returns = gae(REWARDS, VALUES, [3], 1.0, 0.95)
    torch.testing.assert_close(advantages, torch.tensor([0.82675, 0.765, 0.7]))
    torch.testing.assert_close(returns, torch.tensor([0.92675, 0.965, 1.0]))
    torch.testing.assert_close(whiten(advantages), torch.tensor([0.99134, 0.01709, -1.00844]), atol=1e-5, rtol=0)


def test_each_answer_is_by_itself() -> None:
    rewards, values = torch.cat((REWARDS, torch.tensor([0.5, -1.0]))), torch.cat((VALUES, torch.tensor([2.0, 3.0])))
    together = gae(rewards, values, [3, 2], 0.9, 0.8)
    alone = [gae(r, v, [len(r)], 0.9, 0.8) for r, v in ((rewards[:3], values[:3]), (rewards[3:], values[3:]))]
    for both, one, other in zip(together, *alone, strict=True):
        torch.testing.assert_close(both, torch.cat((one, other)))


def test_with_lambda_1_returns_are_rewards_to_go() -> None:
    rewards = torch.tensor([0.3, -0.2, 1.0])
    torch.testing.assert_close(gae(rewards, VALUES, [3], 1.0, 1.0)[1], torch.tensor([1.1, 0.8, 1.0]))


def padded_gae(rewards: Tensor, values: Tensor, mask: Tensor, discount: float, lam: float) -> Tensor:
    """As TRL computes it, from the last column to the first: (B, T) with padding on the right."""
    values = values * mask
    last, columns = torch.zeros(len(rewards)), []
    for t in reversed(range(rewards.shape[1])):
        following = values[:, t + 1] if t < rewards.shape[1] - 1 else torch.zeros(len(rewards))
        delta = rewards[:, t] + discount * following - values[:, t]
        last = delta + discount * lam * last
        columns.append(last)
    return torch.stack(columns[::-1], dim=1)


@pytest.mark.parametrize("padding", [0, 1, 7])
def test_padding_is_no_part_of_it(padding: int) -> None:
    dice = torch.Generator().manual_seed(0)
    lengths = [4, 1, 6]
    rewards, values = torch.randn(2, sum(lengths), generator=dice)
    wide = max(lengths) + padding
    mask = torch.arange(wide) < torch.tensor(lengths)[:, None]
    rows, seen = (torch.zeros(3, wide).masked_scatter(mask, flat) for flat in (rewards, values))
    theirs = padded_gae(rows, seen, mask, 0.99, 0.95)[mask]
    torch.testing.assert_close(gae(rewards, values, lengths, 0.99, 0.95)[0], theirs)


def test_whitening_is_unbiased_and_may_keep_the_mean() -> None:
    x = torch.tensor([1.0, 2.0, 4.0])
    torch.testing.assert_close(whiten(x), (x - x.mean()) / torch.sqrt(x.var(correction=1) + 1e-8))
    torch.testing.assert_close(whiten(x, shift_mean=False).mean(), x.mean())
    assert whiten(torch.tensor([3.0])).tolist() == [0.0]


def test_group_advantages_are_those_of_the_paper() -> None:
    found = group_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0]), 4)
    torch.testing.assert_close(found, 0.865875 * torch.tensor([1.0, -1.0, -1.0, 1.0]), atol=1e-6, rtol=0)
    assert group_advantages(torch.full((4,), 0.7), 2).abs().max() < 1e-3
    plain = group_advantages(torch.tensor([1.0, 0.0, 3.0, 1.0]), 2, "none")
    assert plain.tolist() == [0.5, -0.5, 1.0, -1.0]
    batch = group_advantages(torch.tensor([1.0, 0.0, 3.0, 1.0]), 2, "batch")
    torch.testing.assert_close(batch, plain / (torch.tensor([1.0, 0.0, 3.0, 1.0]).std() + 1e-4))


def test_what_could_not_be_scored_has_no_part_in_its_group() -> None:
    rewards = torch.tensor([1.0, math.nan, 0.0, 1.0, math.nan, math.nan, math.nan, math.nan])
    found = group_advantages(rewards, 4)
    torch.testing.assert_close(found[[0, 2, 3]], group_advantages(torch.tensor([1.0, 0.0, 1.0]), 3))
    assert found[[1, 4, 5, 6, 7]].tolist() == [0.0] * 5


def test_divergence_gives_the_numbers_of_its_estimators() -> None:
    policy, reference = torch.tensor([-1.0]), torch.tensor([-1.5])
    assert divergence(policy, reference).item() == pytest.approx(0.5)
    assert divergence(policy, reference, "k3").item() == pytest.approx(0.106531, abs=1e-6)
    for estimator in ("k1", "k3"):
        assert divergence(policy, policy, estimator).item() == 0
    dice = torch.Generator().manual_seed(0)
    policy, reference = torch.randn(2, 100, generator=dice)
    assert (divergence(policy, reference, "k3") >= 0).all()


def test_the_weight_of_the_divergence_follows_its_target() -> None:
    control = AdaptiveKL(0.2, target=6.0, horizon=10_000)
    control.update(6.0, 512)
    assert control.coefficient == pytest.approx(0.2)
    control.update(60.0, 512)  # the error is clipped to a fifth
    assert control.coefficient == pytest.approx(0.2 * (1 + 0.2 * 512 / 10_000))
    control.update(0.0, 512)
    assert control.coefficient == pytest.approx(0.2 * (1 + 0.2 * 0.0512) * (1 - 0.2 * 0.0512))
    fixed = FixedKL(0.05)
    fixed.update(100.0, 512)
    assert fixed.coefficient == 0.05


def test_sums_are_of_answers() -> None:
    assert sums_of(torch.tensor([1.0, 2.0, 3.0, 4.0]), [1, 3]).tolist() == [1.0, 9.0]
