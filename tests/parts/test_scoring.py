"""The four steps of attention, against their formulas written out one number at a time."""

import math

import pytest
import torch
from torch import Tensor

from intaglio.parts.scoring import Additive, Attention, Dot, General, blend, build_scoring, fuse, weigh
from intaglio.specs import ScoringSpec

H, M = 4, 6
STEPS, PLACES = 3, 5
REAL = torch.tensor([[True] * 5, [True, True, False, False, False], [False] * 5])


def some(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def randomised(module: Attention) -> Attention:
    for number, parameter in enumerate(module.parameters()):
        parameter.data = some(*parameter.shape, seed=number + 10)
    return module.double()


def by_hand(scoring: Additive | Dot | General, h: Tensor, m: Tensor) -> float:
    """The score of one state and one place, from sums of products."""
    rows = h.tolist(), m.tolist()

    def times(matrix: Tensor, vector: list[float]) -> list[float]:
        return [sum(w * x for w, x in zip(row, vector, strict=True)) for row in matrix.tolist()]

    if isinstance(scoring, Additive):
        asked, key = times(scoring.query.weight, rows[0]), times(scoring.key.weight, rows[1])
        bent = [math.tanh(a + b) for a, b in zip(asked, key, strict=True)]
        return sum(v * x for v, x in zip(scoring.vector.weight[0].tolist(), bent, strict=True))
    key = times(scoring.key.weight, rows[1]) if isinstance(scoring, General) else rows[1]
    return sum(a * b for a, b in zip(rows[0], key, strict=True))


@pytest.mark.parametrize("score", ["additive", "dot", "general"])
def test_scores_are_their_formulas(score: str) -> None:
    wide = H if score == "dot" else M
    spec = ScoringSpec.model_validate({"score": score})
    attention = randomised(Attention(spec, H, wide))
    query, states = some(3, STEPS, H), some(3, PLACES, wide, seed=2)
    looked = attention.look_at(states, REAL)
    found = attention.scoring.score(query, looked.keys)
    for b in range(3):
        for t in range(STEPS):
            for s in range(PLACES):
                assert found[b, t, s].item() == pytest.approx(by_hand(attention.scoring, query[b, t], states[b, s]))
    assert sum(p.numel() for p in attention.parameters()) == spec.num_parameters(H, wide)


def test_weights_by_hand() -> None:
    """Scores ln 1, ln 2 and ln 5 weigh 1/8, 2/8 and 5/8; without the last, 1/3 and 2/3."""
    scores = torch.tensor([[[1.0, 2.0, 5.0]], [[1.0, 2.0, 5.0]]]).log()
    weights = weigh(scores, torch.tensor([[True, True, True], [True, True, False]]))
    expected = torch.tensor([[[1 / 8, 2 / 8, 5 / 8]], [[1 / 3, 2 / 3, 0.0]]])
    torch.testing.assert_close(weights, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_padding_weighs_exactly_nothing(dtype: torch.dtype, size: float) -> None:
    weights = weigh((some(3, STEPS, PLACES) * size).to(dtype), REAL)
    assert not weights[~REAL[:, None].expand_as(weights)].any()
    sums = weights.double().sum(dim=-1)
    torch.testing.assert_close(sums[:2], torch.ones(2, STEPS, dtype=torch.double), rtol=0, atol=0.01)
    assert not sums[2].any()


def test_a_source_that_is_all_padding_gives_no_nan_in_the_gradient() -> None:
    scores = some(3, STEPS, PLACES).requires_grad_()
    (weigh(scores, REAL) * some(3, STEPS, PLACES, seed=3)).sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert not scores.grad[2].any()


def test_no_places_at_all() -> None:
    attention = Attention(ScoringSpec(score="additive"), H, M).double()
    looked = attention.look_at(some(2, 0, M), torch.ones(2, 0, dtype=torch.bool))
    query = some(2, STEPS, H)
    fused, weights = attention(query, looked, query)
    assert weights.shape == (2, STEPS, 0)
    assert torch.equal(fused[..., :H], query)
    assert not fused[..., H:].any()


def test_the_context_is_the_weighted_sum_and_stands_behind() -> None:
    weights, states = torch.tensor([[[0.25, 0.75]]]), torch.tensor([[[4.0, 0.0], [8.0, 2.0]]])
    context = blend(weights, states)
    assert context.tolist() == [[[7.0, 1.5]]]
    assert fuse(torch.tensor([[[9.0]]]), context).tolist() == [[[9.0, 7.0, 1.5]]]


def test_the_whole_is_its_four_steps() -> None:
    attention = randomised(Attention(ScoringSpec(score="general"), H, M))
    query, own, looked = some(3, STEPS, H), some(3, STEPS, 2, seed=5), attention.look_at(some(3, PLACES, M), REAL)
    fused, weights = attention(query, looked, own)
    assert torch.equal(weights, weigh(attention.scoring.score(query, looked.keys), looked.real))
    assert torch.equal(fused, fuse(own, blend(weights, looked.states)))


def test_taken_rows() -> None:
    rows = torch.tensor([2, 0, 0])
    for scoring in ("dot", "general"):
        attention = Attention(ScoringSpec.model_validate({"score": scoring}), M, M).double()
        looked = attention.look_at(some(3, PLACES, M), REAL)
        taken = looked.take(rows)
        again = attention.look_at(looked.states[rows], looked.real[rows])
        for name in ("states", "keys", "real"):
            torch.testing.assert_close(getattr(taken, name), getattr(again, name))
        assert (taken.keys is taken.states) == (scoring == "dot")


def test_dot_brings_no_weights() -> None:
    assert list(build_scoring(ScoringSpec(score="dot"), H, H).parameters()) == []
