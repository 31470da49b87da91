"""Log probabilities in chunks against the plain ones, in value and gradient."""

import pytest
import torch
from torch import Tensor

from intaglio.training.objectives.token_logprobs import chunked_log_probs, chunked_log_probs_and_entropies


def _plain(
    hidden: Tensor, weight: Tensor, targets: Tensor, softcap: float | None, temperature: float
) -> tuple[Tensor, Tensor]:
    logits = hidden @ weight.T
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    log_probs = (logits / temperature).log_softmax(dim=-1)
    entropies = -(log_probs.exp() * log_probs).sum(dim=-1)
    return log_probs.gather(-1, targets[:, None])[:, 0], entropies


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("chunk", [1, 4, 64])
@pytest.mark.parametrize(("softcap", "temperature"), [(None, 1.0), (None, 0.7), (3.0, 1.0), (2.0, 1.7)])
def test_equals_the_plain_log_probabilities(
    frozen: bool, chunk: int, softcap: float | None, temperature: float
) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(29, 6, dtype=torch.float64, requires_grad=not frozen)
    targets, scale = torch.randint(29, (11,)), torch.randn(11, dtype=torch.float64)
    wanted, entropies = _plain(hidden, weight, targets, softcap, temperature)
    inputs = (hidden,) if frozen else (hidden, weight)
    slopes = torch.autograd.grad((wanted * scale).sum(), inputs)
    found, spread = chunked_log_probs_and_entropies(
        hidden, weight, targets, chunk=chunk, softcap=softcap, temperature=temperature
    )
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(spread, entropies.detach())
    assert not spread.requires_grad
    torch.testing.assert_close(torch.autograd.grad((found * scale).sum(), inputs), slopes)


def test_blocks_of_a_chunk_are_put_together_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intaglio.training.objectives.softmax.LOSS_BLOCK", 3 * 13)  # three rows a block
    torch.manual_seed(1)
    hidden, weight, targets = torch.randn(10, 4, requires_grad=True), torch.randn(13, 4), torch.randint(13, (10,))
    found = chunked_log_probs(hidden, weight, targets, chunk=7)
    wanted, _ = _plain(hidden, weight, targets, None, 1.0)
    torch.testing.assert_close(found, wanted)
    scale = torch.arange(10.0)
    (slope,) = torch.autograd.grad((found * scale).sum(), hidden)
    torch.testing.assert_close(slope, torch.autograd.grad((wanted * scale).sum(), hidden)[0])


def test_without_gradients_nothing_is_kept() -> None:
    hidden, weight = torch.randn(5, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    with torch.no_grad():
        found = chunked_log_probs(hidden, weight, torch.randint(9, (5,)))
    assert found.grad_fn is None


def test_no_target_gives_nothing_that_is_still_part_of_the_graph() -> None:
    hidden, weight = torch.zeros(0, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    found = chunked_log_probs(hidden, weight, torch.zeros(0, dtype=torch.long))
    assert found.shape == (0,)
    found.sum().backward()
    assert weight.grad is not None
    assert weight.grad.abs().sum() == 0


@pytest.mark.parametrize("frozen", [False, True])
def test_bfloat16_is_summed_in_fp32(frozen: bool) -> None:
    torch.manual_seed(2)
    hidden = torch.randn(8, 16, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(50, 16, dtype=torch.bfloat16, requires_grad=not frozen)
    found = chunked_log_probs(hidden, weight, torch.randint(50, (8,)))
    assert found.dtype == torch.float32
    found.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.bfloat16


def test_uniform_logits_have_the_log_of_the_vocabulary() -> None:
    found, entropies = chunked_log_probs_and_entropies(torch.zeros(3, 4), torch.randn(50, 4), torch.tensor([0, 7, 49]))
    torch.testing.assert_close(found, torch.full((3,), -torch.log(torch.tensor(50.0)).item()))
    torch.testing.assert_close(entropies, -found)
