"""Attention of short documents: the fused kernel's values, and gradients that are its own but for rounding."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from intaglio.parts.context import Packed, Scores
from intaglio.parts.short_attention import short_causal_attention, suits

SCALE = 0.3


def inputs(heads: int, kv_heads: int, length: int, dtype: torch.dtype, width: int = 16) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, n, length, width).to(dtype).requires_grad_() for n in (heads, kv_heads, kv_heads)]


def gradients(out: Tensor, of: list[Tensor]) -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    return torch.autograd.grad(out, of, torch.randn(out.shape).to(out.dtype))


def short(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return short_causal_attention(query, key, value, SCALE)


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=SCALE, enable_gqa=True)


def ways(packed: Packed, x: list[Tensor], scores: Scores) -> Any:
    """What the gradient of each document goes through first."""
    query, key, value = x
    out = packed.attend(0, query, key, value, scores)
    assert out.grad_fn
    return out.grad_fn.next_functions


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize("length", [1, 2, 7, 33])
def test_values_and_gradients(heads: int, kv_heads: int, length: int) -> None:
    x = inputs(heads, kv_heads, length, torch.float64)
    ours, theirs = short(*x), plain(*x)
    assert torch.equal(ours, theirs)
    for a, b in zip(gradients(ours, x), gradients(theirs, x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_in_bf16_gradients_differ_by_rounding() -> None:
    x = inputs(6, 2, 64, torch.bfloat16)
    wide = [y.detach().double().requires_grad_() for y in x]
    exact = gradients(plain(*wide), wide)
    for ours, true in zip(gradients(short(*x), x), exact, strict=True):
        assert (ours.double() - true).norm() <= 0.02 * true.norm()


def test_packed_documents_take_it_where_it_is_the_faster_way() -> None:
    x = inputs(4, 2, 40, torch.bfloat16)
    packed = Packed([30, 10])
    packed.begin(torch.cat([torch.arange(30), torch.arange(10)])[None])
    assert "ShortAttention" in str(ways(packed, x, Scores(SCALE)))
    assert "ShortAttention" not in str(ways(packed, x, Scores(SCALE, softcap=5.0)))
    first, second = map(str, ways(packed, x, Scores(SCALE, window=20)))  # which binds in the first document only
    assert "ShortAttention" not in first
    assert "ShortAttention" in second
    assert not suits(*inputs(4, 2, 40, torch.float32))
    assert not suits(*inputs(4, 2, 385, torch.bfloat16))
    with torch.no_grad():
        assert not suits(*x)
