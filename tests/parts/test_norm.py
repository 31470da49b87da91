"""Norms against their equations; the lean RMSNorm against torch's in value and gradient."""

import pytest
import torch
import torch.nn.functional as F

from intaglio.parts.norm import LayerNorm, RMSNorm


@pytest.mark.parametrize("unit_offset", [False, True])
def test_rms_norm_with_gradients_is_torchs(unit_offset: bool) -> None:
    torch.manual_seed(0)
    norm = RMSNorm(6, 1e-5, unit_offset).double()
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    weight = norm.weight + 1 if unit_offset else norm.weight
    plain, found = F.rms_norm(x, (6,), weight, 1e-5), norm(x)
    torch.testing.assert_close(found, plain)
    out = torch.randn_like(plain)
    expected = torch.autograd.grad(plain, (x, norm.weight), out)
    torch.testing.assert_close(torch.autograd.grad(found, (x, norm.weight), out), expected)
    assert torch.autograd.gradcheck(norm, (x,))


def test_statistics_are_fp32_in_bf16() -> None:
    torch.manual_seed(0)
    norm = RMSNorm(512, 1e-6, unit_offset=False).bfloat16()
    x = (torch.randn(4, 512) * 100).bfloat16().requires_grad_()
    exact = F.rms_norm(x.detach().double(), (512,), None, 1e-6)
    torch.testing.assert_close(norm(x).double(), exact, rtol=2**-8, atol=0)


def test_a_frozen_weight_gets_no_gradient() -> None:
    norm = RMSNorm(4, 1e-6, unit_offset=False).requires_grad_(False)
    x = torch.randn(2, 4, requires_grad=True)
    norm(x).sum().backward()
    assert x.grad is not None
    assert norm.weight.grad is None


def test_by_hand() -> None:
    x = torch.tensor([[3.0, 4.0]])
    torch.testing.assert_close(RMSNorm(2, 0.0, unit_offset=False)(x), x / (12.5**0.5))
    torch.testing.assert_close(LayerNorm(2, 0.0, bias=True)(x), torch.tensor([[-1.0, 1.0]]))
