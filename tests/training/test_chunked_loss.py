"""The chunked loss is the plain one, in value and gradient."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from intaglio.training.objectives.chunked_loss import chunked_cross_entropy


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, softcap: float | None, z_loss: float) -> Tensor:
    logits = hidden @ weight.T
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    return F.cross_entropy(logits, targets, reduction="sum") + z_loss * logits.logsumexp(-1).square().sum()


@pytest.mark.parametrize("chunk", [1, 5, 64])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("z_loss", [0.0, 0.01])
def test_value_and_gradients(chunk: int, softcap: float | None, z_loss: float) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(13, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(21, 8, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 21, (13,))
    expected = plain(hidden, weight, targets, softcap, z_loss)
    wanted = torch.autograd.grad(expected * 0.7, (hidden, weight))
    found = chunked_cross_entropy(hidden, weight, targets, chunk=chunk, softcap=softcap, z_loss=z_loss)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    for ours, theirs in zip(torch.autograd.grad(found * 0.7, (hidden, weight)), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_uniform_logits_cost_the_logarithm_of_the_vocabulary() -> None:
    loss = chunked_cross_entropy(torch.zeros(3, 4), torch.randn(50, 4), torch.tensor([0, 7, 49]))
    assert loss.item() / 3 == pytest.approx(math.log(50))


def test_no_targets_give_zero_that_is_still_connected() -> None:
    hidden = torch.randn(0, 4, requires_grad=True)
    weight = torch.randn(9, 4, requires_grad=True)
    loss = chunked_cross_entropy(hidden, weight, torch.zeros(0, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0
    assert weight.grad is not None
    assert weight.grad.abs().sum() == 0


def test_bf16_keeps_its_logits_in_fp32() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(64, 16).bfloat16()
    weight = torch.randn(300, 16).bfloat16()
    targets = torch.randint(0, 300, (64,))
    exact = plain(hidden.double(), weight.double(), targets, None, 0.0)
    found = chunked_cross_entropy(hidden, weight, targets, chunk=10)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(exact.item(), rel=3e-3)
