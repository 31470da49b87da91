"""The numbers that prove the formulas: at the start, on worked examples, and where naive code gives infinities."""

import math

import pytest
import torch
import torch.nn.functional as F

from compared import judged
from intaglio.training.objectives.dpo import PairLoss, preference_loss
from intaglio.training.objectives.kto import kto_losses, rotated
from intaglio.training.objectives.orpo import log1mexp, log_odds
from intaglio.training.objectives.reward import reward_losses

LN2 = math.log(2)


@pytest.mark.parametrize(
    ("kind", "smoothing", "start"),
    [
        ("sigmoid", 0.0, LN2),
        ("robust", 0.1, LN2),
        ("cdpo", 0.1, LN2),
        ("sigmoid_norm", 0.0, LN2),
        ("hinge", 0.0, 1.0),
        ("ipo", 0.0, 25.0),  # (1 / 2 beta)^2
    ],
)
def test_dpo_at_the_start(kind: PairLoss, smoothing: float, start: float) -> None:
    found = preference_loss(kind, torch.zeros(3, 2), torch.tensor([[4, 5]] * 3), 0.1, smoothing)
    torch.testing.assert_close(found, torch.full((3,), start))


@pytest.mark.parametrize(
    ("kind", "smoothing", "loss"),
    [
        ("sigmoid", 0.0, 0.620957),
        ("robust", 0.1, 0.602207),
        ("ipo", 0.0, 21.6225),
        ("hinge", 0.0, 0.85),
        ("cdpo", 0.1, 0.635957),  # .9 of -log sigmoid(.15), .1 of -log sigmoid(-.15) = .770957
    ],
)
def test_dpo_on_a_worked_example(kind: PairLoss, smoothing: float, loss: float) -> None:
    """pi = (-12, -15), reference = (-13, -14.5), lengths 4 and 5, beta .1"""
    ratios = torch.tensor([[-12.0, -15.0]]) - torch.tensor([[-13.0, -14.5]])
    torch.testing.assert_close(0.1 * ratios, torch.tensor([[0.1, -0.05]]))
    found = preference_loss(kind, ratios, torch.tensor([[4, 5]]), 0.1, smoothing)
    assert found.item() == pytest.approx(loss, abs=2e-6)


def test_dpo_pulls_both_answers_by_half_of_beta_at_the_start() -> None:
    ratios = torch.zeros(1, 2, requires_grad=True)
    (slope,) = torch.autograd.grad(preference_loss("sigmoid", ratios, torch.ones(1, 2), 0.1).sum(), ratios)
    torch.testing.assert_close(slope, torch.tensor([[-0.05, 0.05]]))


def test_robust_is_without_bias() -> None:
    """Over labels of which e are flipped, its mean is DPO's loss of the true ones."""
    ratios, lengths, e = torch.tensor([[1.3, -0.4]]), torch.ones(1, 2), 0.2
    right, flipped = (preference_loss("robust", x, lengths, 0.5, e) for x in (ratios, ratios.flip(1)))
    torch.testing.assert_close((1 - e) * right + e * flipped, preference_loss("sigmoid", ratios, lengths, 0.5))


def test_orpo_on_a_worked_example() -> None:
    odds = log_odds(torch.tensor([-0.5, -1.0]))
    assert (odds[0] - odds[1]).item() == pytest.approx(0.974077, abs=1e-6)
    assert -F.logsigmoid(odds[0] - odds[1]).item() == pytest.approx(0.320300, abs=1e-6)
    same = log_odds(torch.tensor(-0.7)) - log_odds(torch.tensor(-0.7))
    assert -F.logsigmoid(same).item() == pytest.approx(LN2)


def test_the_odds_of_what_is_all_but_certain() -> None:
    """Case 18: in fp32 log(1 - e^x) of -1e-8 is -18.42, and where an answer is certain nothing is infinite."""
    assert log1mexp(torch.tensor(-1e-8)).item() == pytest.approx(-18.42, abs=0.005)
    assert torch.log1p(-torch.exp(torch.tensor(-1e-8))).item() == -math.inf
    x = torch.tensor([0.0, -1e-12, -1e-8, -0.69, -0.70, -30.0, -200.0], requires_grad=True)
    exact = torch.log(-torch.expm1(x.detach().double()))[2:]
    torch.testing.assert_close(log1mexp(x)[2:].double(), exact, rtol=1e-5, atol=1e-12)
    odds = log_odds(x)
    assert odds.isfinite().all()
    (slope,) = torch.autograd.grad(F.logsigmoid(odds - odds.flip(0)).sum(), x)
    assert slope.isfinite().all()


def test_kto_on_worked_examples() -> None:
    ratios, desirable = torch.tensor([1.0, -0.5]), torch.tensor([True, False])
    found = kto_losses(ratios, desirable, torch.tensor(0.3), 0.1, (1.0, 1.0))
    torch.testing.assert_close(found, torch.tensor([0.482507, 0.480011]), atol=1e-6, rtol=0)
    start = kto_losses(torch.zeros(2), desirable, torch.tensor(0.0), 0.1, (1.2, 0.7))
    torch.testing.assert_close(start, torch.tensor([0.6, 0.35]))


def test_no_example_of_an_odd_batch_keeps_its_own_answer() -> None:
    """Case 14: [x, y, z] turns into [z, x, y]; reversed, the middle one would meet itself."""
    examples = judged(3)
    others = rotated(examples, 64)
    for number, (mine, other) in enumerate(zip(examples, others, strict=True)):
        before = examples[number - 1]
        assert other.ids.tolist() == [*mine.prompt, *before.ids[before.fork[0] :]]
        assert other.supervised.sum() == before.supervised.sum()


def test_an_answer_of_another_is_cut_to_the_length_that_rows_may_have() -> None:
    examples = judged(3)
    for mine, other in zip(examples, rotated(examples, 8), strict=True):
        assert len(other.ids) <= max(8, mine.fork[0] + 1)
        assert other.supervised.any()


def test_reward_losses() -> None:
    same = torch.full((4, 2), 1.7)
    torch.testing.assert_close(reward_losses(same), torch.full((4,), LN2))
    margins = torch.tensor([0.0, 0.5, -1.0, 3.0])
    torch.testing.assert_close(reward_losses(same, margins), F.softplus(margins))
    rewards = torch.tensor([[0.3, -1.1], [2.0, 2.5]])
    difference = rewards[:, 0] - rewards[:, 1]
    torch.testing.assert_close(reward_losses(rewards) - reward_losses(rewards.flip(1)), -difference)
    centered = reward_losses(rewards, center=0.01) - reward_losses(rewards)
    torch.testing.assert_close(centered, 0.01 * rewards.sum(dim=1).square())


def test_loss_is_finite_however_far_apart_two_answers_are() -> None:
    ratios = torch.tensor([[3000.0, -3000.0], [-3000.0, 3000.0]], requires_grad=True)
    for kind in ("sigmoid", "cdpo", "robust", "hinge", "sigmoid_norm"):
        loss = preference_loss(kind, ratios, torch.ones(2, 2), 1.0)
        assert loss.isfinite().all(), kind
        assert torch.autograd.grad(loss.sum(), ratios)[0].isfinite().all(), kind
