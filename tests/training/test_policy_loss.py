"""The clipped surrogates: the numbers of the paper, TRL's formulas on recorded tensors, and sequence ratios."""

import math

import pytest
import torch
from torch import Tensor

from intaglio.training.objectives.policy_loss import clipped_policy_loss, clipped_value_loss, means_by_answer


def recorded(seed: int = 0) -> dict[str, Tensor]:
    """What a PPO step has at hand, for 3 answers of 5 tokens at most."""
    dice = torch.Generator().manual_seed(seed)
    names = ("new", "old", "advantages", "values", "old_values", "returns")
    return {name: torch.randn(3, 5, generator=dice) for name in names}


MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]], dtype=torch.bool)


def masked_mean(x: Tensor) -> Tensor:
    return (x * MASK).sum() / MASK.sum()


def test_the_surrogate_is_clipped_where_it_pays() -> None:
    good, bad = (clipped_policy_loss(torch.tensor([0.3]), torch.tensor([a])).losses.item() for a in (1.0, -1.0))
    assert good == pytest.approx(-1.2)
    assert bad == pytest.approx(1.34986, abs=1e-5)


def test_clip_higher_widens_one_side() -> None:
    log_ratio, advantages = torch.tensor([0.25, -0.25]), torch.tensor([1.0, -1.0])
    wide = clipped_policy_loss(log_ratio, advantages, 0.2, 0.28)
    assert wide.losses.tolist() == pytest.approx([-1.28, 0.8])
    assert (wide.low.tolist(), wide.high.tolist()) == ([False, True], [True, False])
    assert clipped_policy_loss(log_ratio, advantages, 0.2, 0.3).high.tolist() == [False, False]


def test_where_nothing_has_moved_the_loss_is_minus_the_advantage() -> None:
    advantages = torch.tensor([0.5, -2.0, 1.5])
    log_ratio = torch.zeros(3, requires_grad=True)
    found = clipped_policy_loss(log_ratio, advantages)
    torch.testing.assert_close(found.losses, -advantages)
    assert found.ratio.tolist() == [1.0] * 3
    assert not found.approx_kl.any()
    assert not (found.low | found.high).any()
    found.losses.sum().backward()
    torch.testing.assert_close(log_ratio.grad, -advantages)


def test_the_policy_loss_is_trls() -> None:
    """pg_loss, approxkl and clipfrac as its trainer has them, on padded rows."""
    seen = recorded()
    ratio = torch.exp(seen["new"] - seen["old"])
    theirs = torch.max(-seen["advantages"] * ratio, -seen["advantages"] * torch.clamp(ratio, 0.8, 1.2))
    ours = clipped_policy_loss((seen["new"] - seen["old"])[MASK], seen["advantages"][MASK])
    torch.testing.assert_close(ours.losses.mean(), masked_mean(theirs))
    torch.testing.assert_close(ours.approx_kl.mean(), 0.5 * masked_mean((seen["new"] - seen["old"]) ** 2))
    torch.testing.assert_close(ours.ratio, ratio[MASK])


def test_the_value_loss_is_trls() -> None:
    seen = recorded(1)
    clipped = torch.clamp(seen["values"], seen["old_values"] - 0.2, seen["old_values"] + 0.2)
    squares = torch.square(seen["values"] - seen["returns"]), torch.square(clipped - seen["returns"])
    theirs = 0.5 * masked_mean(torch.max(*squares))
    values, old_values, returns = (seen[name][MASK] for name in ("values", "old_values", "returns"))
    ours, bounded = clipped_value_loss(values, old_values, returns)
    torch.testing.assert_close(ours.mean(), theirs)
    torch.testing.assert_close(bounded.float().mean(), masked_mean((squares[1] > squares[0]).float()))


def test_a_sequence_has_one_ratio() -> None:
    log_ratio = torch.tensor([0.1, 0.3, -0.6, 0.2, 0.2, 0.5], requires_grad=True)
    found = means_by_answer(log_ratio, [2, 0, 3, 1])
    expected = [0.2, 0.2, -0.2 / 3, -0.2 / 3, -0.2 / 3, 0.5]
    assert found.tolist() == pytest.approx(expected)
    found.exp().sum().backward()
    gradient = [math.exp(x) for x in expected]
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == pytest.approx(gradient)
