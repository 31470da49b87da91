"""The operators of a training step against their definitions in double precision: values and gradients."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from intaglio.native import gradients
from intaglio.parts.context import Scores
from intaglio.parts.forked import Forked, fork_positions
from intaglio.parts.position import rotate
from native_build import native_file, with_native

__all__ = ["native_file", "with_native"]  # fixtures

pytestmark = pytest.mark.usefixtures("with_native")
ROUNDING = 2**-7  # of bf16, relative: one rounding of what goes in and one of what comes out
SCALE = 0.3


@pytest.fixture
def two_threads() -> Iterator[Callable[[], None]]:
    """One thread until it is called."""
    yield lambda: torch.set_num_threads(2)
    torch.set_num_threads(1)


def bf16(*shape: int, size: float = 1.0) -> Tensor:
    return (torch.randn(shape) * size).bfloat16()


def exact(f: Callable[..., Tensor], inputs: Sequence[Tensor], d_out: Tensor) -> list[Tensor]:
    """The value and the gradients by all inputs, in fp64."""
    wide = [x.detach().double().requires_grad_() for x in inputs]
    out = f(*wide)
    return [out.detach(), *torch.autograd.grad(out, wide, d_out.double())]


def assert_near(found: Sequence[Tensor], expected: Sequence[Tensor], error: float = ROUNDING) -> None:
    for made, true in zip(found, expected, strict=True):
        assert made.shape == true.shape
        assert (made.double() - true).norm() <= error * true.norm()


def test_only_bf16_on_a_cpu_is_served() -> None:
    assert gradients.serves(bf16(2), bf16(3))
    assert not gradients.serves(bf16(2), torch.zeros(3))
    assert not gradients.serves(torch.zeros(2, dtype=torch.bfloat16, device="meta"))


@pytest.mark.parametrize("width", [5, 32, 577])
def test_rms_norm(width: int) -> None:
    torch.manual_seed(0)
    x, weight, d_out = bf16(3, 100, width, size=30), bf16(width), bf16(3, 100, width)
    out, scale = gradients.rms_norm(x, weight, 1e-5)
    assert scale.shape == (3, 100, 1)
    d_x, d_weight = gradients.rms_norm_backward(d_out, x, weight, scale, True)
    assert d_weight is not None
    assert_near([out, d_x, d_weight], exact(lambda x, w: F.rms_norm(x, (width,), w, 1e-5), (x, weight), d_out), 2**-8)
    assert gradients.rms_norm_backward(d_out, x, weight, scale, False)[1] is None


@pytest.mark.parametrize("width", [3, 48, 130])
def test_swiglu(width: int) -> None:
    torch.manual_seed(0)
    gate, up, d_out = (bf16(2, 7, width, size=4) for _ in range(3))
    expected = exact(lambda g, u: F.silu(g) * u, (gate, up), d_out)
    assert_near([gradients.gated(gate, up), *gradients.gated_backward(d_out, gate, up)], expected, 2**-8)


def test_swiglu_of_large_gates_is_finite() -> None:
    gate, one = torch.tensor([-1e4, -90.0, 0.0, 90.0, 1e4]).bfloat16(), torch.ones(5).bfloat16()
    torch.testing.assert_close(gradients.gated(gate, one), gate.relu(), rtol=0, atol=1e-30)
    slope = gradients.gated_backward(one, gate, one)[0].float()
    torch.testing.assert_close(slope, torch.tensor([0, 0, 0.5, 1, 1]), rtol=0, atol=1e-30)


@pytest.mark.parametrize("width", [2, 24, 64])
@pytest.mark.parametrize("rows", [1, 2])
def test_rotation(width: int, rows: int) -> None:
    torch.manual_seed(0)
    x, d_out = (bf16(2, 7, 5 * width).unflatten(-1, (5, width)).transpose(1, 2) for _ in range(2))  # (B, H, T, D)
    angles = bf16(rows, 1, 7, width), bf16(rows, 1, 7, width)
    out, d_x = gradients.rotated(x, *angles), gradients.rotated(d_out, *angles, back=True)
    expected = exact(lambda x: rotate(x, (angles[0].double(), angles[1].double())), (x,), d_out)
    assert_near([out, d_x], expected, 2**-8)
    assert out.stride() == d_x.stride() == x.stride()


# Attention


def documents(heads: int, kv_heads: int, tokens: int, width: int) -> list[Tensor]:
    """Queries, keys, values and the gradient of what comes out."""
    torch.manual_seed(0)
    return [bf16(1, tokens, n, width).transpose(1, 2) for n in (heads, kv_heads, kv_heads, heads)]


def each_by_itself(lengths: Sequence[int]) -> Callable[..., Tensor]:
    def alone(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=SCALE, enable_gqa=True)

    def attend(*x: Tensor) -> Tensor:
        parts = zip(*(y.split(list(lengths), dim=2) for y in x), strict=True)
        return torch.cat([alone(query, key, value) for query, key, value in parts], dim=2)

    return attend


def attended(x: Sequence[Tensor], lengths: Sequence[int]) -> list[Tensor]:
    query, key, value, d_out = x
    out = gradients.documents_attention(query, key, value, lengths, SCALE)
    return [out, *gradients.documents_attention_backward(d_out, query, key, value, lengths, SCALE)]


@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(9, 3, 64), (4, 4, 10), (5, 1, 24), (2, 1, 80)])
@pytest.mark.parametrize("lengths", [(1,), (5, 33, 1, 64, 100), (31, 32, 33), (384,)], ids=str)
def test_attention_of_documents(heads: int, kv_heads: int, width: int, lengths: Sequence[int]) -> None:
    x = documents(heads, kv_heads, sum(lengths), width)
    found, expected = attended(x, lengths), exact(each_by_itself(lengths), x[:3], x[3])
    if lengths == (1,):  # its one weight is 1 whatever the scores are
        assert not found[1].any()
        assert not found[2].any()
        del found[1:3], expected[1:3]
    assert_near(found, expected)


@pytest.mark.parametrize("forks", [[(5, 3, 4)], [(40, 7, 30), (0, 3, 2, 35), (9,), (33, 1, 64, 2)]], ids=str)
def test_attention_of_documents_that_fork(forks: list[tuple[int, ...]]) -> None:
    x, context = documents(6, 2, sum(map(sum, forks)), 32), Forked(forks)
    context.begin(torch.cat([fork_positions(fork) for fork in forks])[None])

    def each_branch(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return context.attend(0, query, key, value, Scores(SCALE))

    expected = exact(each_branch, x[:3], x[3])  # in doubles, which no operator here takes
    leaves = [y.clone().requires_grad_() for y in x[:3]]
    out = each_branch(*leaves)
    assert "DocumentsAttention" in str(out.grad_fn)
    assert_near([out.detach(), *torch.autograd.grad(out, leaves, x[3])], expected)
    with torch.no_grad():
        assert torch.equal(each_branch(*x[:3]), out)


def test_documents_do_not_see_each_other() -> None:
    x = documents(4, 2, 90, 16)
    together = attended(x, [40, 50])
    for place, length in ((0, 40), (40, 50)):
        alone = attended([y[:, :, place : place + length] for y in x], [length])
        for a, b in zip(alone, together, strict=True):
            assert torch.equal(a, b[:, :, place : place + length])


def test_attention_of_scores_far_apart() -> None:
    x = documents(2, 2, 70, 32)
    x[0] = x[0] * 30
    found, expected = attended(x, [70]), exact(each_by_itself([70]), x[:3], x[3])
    assert_near(found, expected, 2**-5)  # the softmax's derivative nearly vanishes
    assert all(y.isfinite().all() for y in found)


# Low rank


@pytest.mark.parametrize(("tokens", "inputs", "outputs", "rank"), [(1, 32, 64, 1), (37, 96, 32, 16), (600, 64, 96, 40)])
def test_low_rank(tokens: int, inputs: int, outputs: int, rank: int) -> None:
    torch.manual_seed(0)
    out, x, d_out, d_x = (bf16(tokens, n) for n in (outputs, inputs, outputs, inputs))
    a, b = torch.randn(rank, inputs), torch.randn(outputs, rank)
    before = d_x.clone()
    changed, low = gradients.low_rank_added(out, x, a, b, 0.7)
    d_a, d_b = gradients.low_rank_backward(d_out, x, low, a, b, 0.7, d_x)
    value, d_base, by_x, by_a, by_b = exact(lambda y, x, a, b: y + 0.7 * x @ a.T @ b.T, (out, x, a, b), d_out)
    assert torch.equal(d_base, d_out.double())
    assert_near([changed, d_x, d_a, d_b], [value, before.double() + by_x, by_a, by_b])
    again = gradients.low_rank_backward(d_out, x, low, a, b, 0.7, None)
    assert torch.equal(again[0], d_a)
    assert torch.equal(again[1], d_b)


# Loss


@pytest.mark.parametrize("vocabulary", [2, 21, 64, 1003])
@pytest.mark.parametrize("z_loss", [0.0, 0.01])
def test_cross_entropy(vocabulary: int, z_loss: float) -> None:
    torch.manual_seed(0)
    logits, targets = bf16(13, vocabulary, size=5), torch.randint(0, vocabulary, (13,))

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets, reduction="none") + z_loss * logits.logsumexp(-1).square()

    value, slope = exact(loss, (logits,), torch.ones(13))
    losses = gradients.cross_entropy_(logits, targets, z_loss)
    torch.testing.assert_close(losses.double(), value, rtol=1e-5, atol=1e-5)
    assert_near([logits], [slope], 2**-8)


def test_cross_entropy_of_logits_far_apart() -> None:
    logits = torch.tensor([[300.0, -300.0, 0.0], [-1e4, -1e4, -1e4]]).bfloat16()
    losses = gradients.cross_entropy_(logits, torch.tensor([1, 2]), 0.0)
    torch.testing.assert_close(losses, torch.tensor([600.0, math.log(3)]))
    torch.testing.assert_close(logits.float(), torch.tensor([[1, -1, 0], [1 / 3, 1 / 3, -2 / 3]]), rtol=4e-3, atol=0)


def test_a_target_outside_of_the_vocabulary_is_refused() -> None:
    with pytest.raises(IndexError, match="target 3 of 3"):
        gradients.cross_entropy_(bf16(2, 3), torch.tensor([0, 3]), 0.0)


def test_bits_do_not_depend_on_threads(two_threads: Callable[[], None]) -> None:
    torch.manual_seed(0)
    x = documents(6, 2, 300, 32)
    wide, weight, targets = bf16(300, 1024), bf16(1024), torch.randint(0, 1024, (300,))
    a, b = torch.randn(8, 1024), torch.randn(1024, 8)

    def everything() -> Iterator[Tensor]:
        yield from attended(x, [100, 150, 50])
        out, scale = gradients.rms_norm(wide, weight, 1e-5)
        d_x, d_weight = gradients.rms_norm_backward(out, wide, weight, scale, True)
        assert d_weight is not None
        yield from (out, d_x.clone(), d_weight, gradients.gated(wide, out), *gradients.gated_backward(wide, out, wide))
        changed, low = gradients.low_rank_added(wide, out, a, b, 2.0)
        yield from (changed, *gradients.low_rank_backward(wide, out, low, a, b, 2.0, d_x), d_x)
        logits = wide.clone()
        yield from (gradients.cross_entropy_(logits, targets, 0.0), logits)

    one = list(everything())
    two_threads()
    two = list(everything())
    assert all(itertools.starmap(torch.equal, zip(one, two, strict=True)))
