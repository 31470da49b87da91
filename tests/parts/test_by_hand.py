"""docs/attention-by-hand.md: every number in it, by plain arithmetic and by our parts."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from intaglio.parts.context import PAD, Causal, Padded, Scores, Whole, attend, positions_of
from intaglio.parts.feed_forward import FeedForward
from intaglio.parts.memory import CrossContext, EndToEnd, Equal, Kept, Memory
from intaglio.parts.norm import LayerNorm
from intaglio.parts.position import SinusoidalPositions
from intaglio.specs import FeedForwardSpec

PAGE = (Path(__file__).parents[2] / "docs" / "attention-by-hand.md").read_text(encoding="utf-8")


def row(*cells: str | int) -> str:
    """A row of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def shown(values: list[float] | Tensor) -> str:
    """Four digits, as the page has them."""
    listed = values.flatten().tolist() if isinstance(values, Tensor) else values
    return ", ".join(f"{value + 0.0:.4f}" for value in listed)


@pytest.mark.parametrize(("features", "eps"), [((1.0, 3.0), 1.0), ((2.001, 1.999), 1e-5)])
def test_layer_norm(features: tuple[float, float], eps: float) -> None:
    mean = sum(features) / 2
    sigma = math.sqrt(sum((x - mean) ** 2 for x in features) / 2)
    beside = [(x - mean) / (sigma + eps) for x in features]
    under = [(x - mean) / math.sqrt(sigma**2 + eps) for x in features]
    ours = LayerNorm(2, eps, bias=True).double()(torch.tensor(features, dtype=torch.float64))
    assert ours.tolist() == pytest.approx(under, rel=1e-9)
    assert row("(x - mean) / (sigma + eps)", shown(beside)) in PAGE
    assert row("(x - mean) / sqrt(sigma^2 + eps)", shown(under)) in PAGE


def test_layer_norm_with_the_usual_eps() -> None:
    ours = LayerNorm(2, 1e-5, bias=True)(torch.tensor([1.0, 3.0]))
    assert f"for (1, 3) the second is {shown(ours)}" in PAGE
    assert shown([-1 / (1 + 1e-5), 1 / (1 + 1e-5)]) == shown(ours)


def test_sinusoids() -> None:
    laid = {layout: SinusoidalPositions(4, layout)(torch.arange(3)) for layout in ("interleaved", "halves")}
    for p in range(3):
        waves = [f(p / 10000 ** (2 * i / 4)) for i in range(2) for f in (math.sin, math.cos)]
        assert laid["interleaved"][p].tolist() == pytest.approx(waves, abs=1e-6)
        assert laid["halves"][p].tolist() == pytest.approx([waves[i] for i in (0, 2, 1, 3)], abs=1e-6)
        assert row(p, shown(waves), shown([waves[i] for i in (0, 2, 1, 3)])) in PAGE  # 0.99995: fp32 rounds it down
    zero, one, two = laid["interleaved"]
    assert f"0 with 1 gives {zero @ one:.4f}, and so does 1 with 2" in PAGE
    assert (one @ two).item() == pytest.approx(math.cos(1) + math.cos(0.01), abs=1e-5)


@pytest.mark.parametrize(("name", "scale"), [("scaled", 0.5), ("not scaled", 1.0)])
def test_scaled_dot_products(name: str, scale: float) -> None:
    query, keys, values = [2.0, 2, 0, 0], [[1.0, 1, 0, 0], [1.0, 0, 0, 0]], [[1.0, 0], [0.0, 1]]
    scores = [scale * sum(q * k for q, k in zip(query, key, strict=True)) for key in keys]
    weights = [math.exp(score) / sum(map(math.exp, scores)) for score in scores]
    q, k, v = (torch.tensor(x)[None, None] for x in ([query], keys, values))
    ours = attend(q, k, v, Scores(scale), None)
    assert ours.flatten().tolist() == pytest.approx(weights, abs=1e-6)
    assert row(name, shown(scores), shown(weights)) in PAGE


def test_masking() -> None:
    query = key = torch.zeros(1, 1, 3, 2)
    value, weights = torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 3, 1), torch.eye(3).view(1, 1, 3, 3)
    found = {}
    for name, context in (("whole", Whole()), ("causal", Causal())):
        context.begin(torch.arange(3)[None])
        found[name] = [context.attend(0, query, key, one, Scores(1.0))[0, 0] for one in (weights, value)]
    for token in range(3):
        cells = [shown(one[token]) for name in ("whole", "causal") for one in found[name]]
        assert row(token + 1, *cells) in PAGE
        assert found["causal"][1][token].item() == pytest.approx(sum(range(1, token + 2)) / (token + 1))


def test_masking_of_padding() -> None:
    """A source of two tokens, padded to three: read three ways, and by positions."""
    states = torch.tensor([1.0, 2.0]).view(1, 2, 1)
    memory, query = Memory(states, (2,)), torch.zeros(1, 1, 2, 1)

    def keys_values(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(x)[:, None], x[:, None]

    contexts: tuple[CrossContext, ...] = (
        Equal(memory),
        EndToEnd(memory, [2]),
        Kept(memory),
        Kept(Memory(torch.ones(1, 5, 1), (2, 3))),
    )
    results = [
        one.attend(0, query.expand(b, -1, -1, -1), keys_values, Scores(1.0))
        for one, b in zip(contexts, (1, 1, 1, 2), strict=True)
    ]
    assert [shown(one) for one in results[:3]] == ["1.5000, 1.5000"] * 3
    assert shown(results[3]) == "1.0000, 1.0000, 1.0000, 1.0000"  # zeros behind the shorter row are not seen
    assert "0.5000, 0.5000, result 1.5000 in the encoder" in PAGE
    padded = Padded()
    padded.begin(positions_of(torch.tensor([[1, 1, 0]])))
    value = torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 3, 1)
    assert padded.attend(0, value * 0, value * 0, value, Scores(1.0))[0, 0, 1].item() == pytest.approx(1.5)
    assert PAD > 10**6


def test_feed_forward() -> None:
    layer = FeedForward(FeedForwardSpec(intermediate_size=3, activation="relu", bias=True), 2)
    with torch.no_grad():
        layer.up_proj.weight.copy_(torch.tensor([[1.0, 0, -1], [0, 1, 0]]).T)
        layer.up_proj.bias.copy_(torch.tensor([0, 0, 0.5]))
        layer.down_proj.weight.copy_(torch.tensor([[1.0, 0], [0, 1], [5, 5]]).T)
        layer.down_proj.bias.copy_(torch.tensor([0.5, -1]))
    x = torch.tensor([1.0, 2.0])
    before = [1.0 * 1 + 2 * 0, 1 * 0 + 2 * 1.0, 1 * -1 + 2 * 0 + 0.5]
    after = [max(0.0, value) for value in before]
    result = [after[0] + 5 * after[2] + 0.5, after[1] + 5 * after[2] - 1]
    assert layer.up_proj(x).tolist() == pytest.approx(before)
    assert layer(x).tolist() == pytest.approx(result)
    for name, numbers in (("x W1 + b1", before), ("max(0, .)", after), ("result", result)):
        assert row(name, shown(numbers)) in PAGE
