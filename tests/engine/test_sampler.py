"""The sampler: filters and penalty as transformers has them, rows that do not disturb each other, fair draws."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from intaglio.engine.sampler import SamplingParams, filter_logits, generator_for, sample
from intaglio.errors import UserError

V = 50
GREEDY = SamplingParams(temperature=0)


def logits(rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)) * 3


def warpers(p: SamplingParams) -> LogitsProcessorList:
    steps: list[Any] = [TemperatureLogitsWarper(float(p.temperature))]
    steps += [MinPLogitsWarper(p.min_p)] if p.min_p else []
    steps += [TopKLogitsWarper(p.top_k)] if p.top_k > 0 else []
    steps += [TopPLogitsWarper(p.top_p)] if p.top_p < 1 else []
    return LogitsProcessorList(steps)


PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0.1, 3),
    top_k=st.sampled_from([-1, 0, 1, 3, 49, 50, 80]),
    top_p=st.sampled_from([1.0, 0.95, 0.9, 0.5, 0.1, 1e-6]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)


@settings(max_examples=60)
@given(params=st.lists(PARAMS, min_size=1, max_size=5), seed=st.integers(0, 99), ties=st.booleans())
def test_filters_equal_transformers_row_by_row(params: list[SamplingParams], seed: int, ties: bool) -> None:
    scores = logits(len(params), seed)
    scores = scores.round() if ties else scores
    ours = filter_logits(scores, params)
    theirs = torch.cat([warpers(p)(None, scores[i : i + 1]) for i, p in enumerate(params)])
    if ties:  # which of several equally likely tokens are kept is nobody's promise
        ours, theirs = ours.sort(dim=-1).values, theirs.sort(dim=-1).values
    assert torch.equal(ours.isinf(), theirs.isinf())
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    assert (~ours.isinf()).any(dim=-1).all()


@pytest.mark.parametrize("sharpness", [0.5, 8.0])
def test_top_p_equals_transformers_on_flat_and_sharp_rows_of_a_large_vocabulary(sharpness: float) -> None:
    scores = torch.randn(3, 5000, generator=torch.Generator().manual_seed(3)) * sharpness
    params = [SamplingParams(top_p=0.9), SamplingParams(), SamplingParams(top_p=0.5)]
    ours = filter_logits(scores, params)
    theirs = torch.cat([warpers(p)(None, scores[i : i + 1]) for i, p in enumerate(params)])
    assert torch.equal(ours.isinf(), theirs.isinf())


def test_repetition_penalty_equals_transformers() -> None:
    scores, penalties = logits(3), [1.3, 1.0, 0.7]
    histories = [[1, 1, 4, 49, 70], [2], [3, 3, 9]]
    for row, penalty in enumerate(penalties):
        expected = RepetitionPenaltyLogitsProcessor(penalty)(
            torch.tensor([[i for i in histories[row] if i < V]]), scores[row : row + 1].clone()
        )
        mixed = [SamplingParams(temperature=0, repetition_penalty=p) for p in penalties]
        assert sample(scores, mixed, histories).ids[row] == expected.argmax()
    untouched = scores.clone()
    sample(scores, mixed, histories)
    assert torch.equal(scores, untouched)


def test_a_penalty_changes_what_is_drawn_as_in_transformers() -> None:
    scores, params = logits(1), SamplingParams(repetition_penalty=5.0, top_k=1)
    best = [int(i) for i in scores[0].topk(5).indices]
    expected = RepetitionPenaltyLogitsProcessor(5.0)(torch.tensor([best]), scores.clone()).argmax()
    assert sample(scores, [params], [best]).ids.item() == expected.item() != best[0]


def test_temperature_0_is_argmax_beside_rows_that_are_drawn() -> None:
    scores = logits(4)
    params = [GREEDY, SamplingParams(seed=1), SamplingParams(temperature=1e-7), SamplingParams(top_k=1)]
    ids = sample(scores, params, generators=[generator_for(p) for p in params]).ids
    assert ids.dtype == torch.int64
    assert torch.equal(ids[[0, 2, 3]], scores.argmax(-1)[[0, 2, 3]])


def test_a_seeded_row_does_not_depend_on_its_mates() -> None:
    scores, seeded = logits(3), SamplingParams(seed=7, top_p=0.9)

    def drawn(params: list[SamplingParams], place: int) -> list[int]:
        generators = [generator_for(p) for p in params]
        rows = torch.stack([scores[1] if i == place else scores[2] for i in range(len(params))])
        return [int(sample(rows, params, generators=generators).ids[place]) for _ in range(20)]

    alone = drawn([seeded], 0)
    assert len(set(alone)) > 1
    assert drawn([SamplingParams(), GREEDY, seeded], 2) == alone
    assert drawn([seeded, SamplingParams(seed=7), SamplingParams(top_k=3, min_p=0.1)], 0) == alone


def test_draws_have_the_models_probabilities() -> None:
    scores = torch.tensor([[2.0, 1.0, 0.0, -1.0, float("-inf")]]).expand(20000, 5)
    torch.manual_seed(0)
    counts = sample(scores, [SamplingParams(top_p=0.98)] * 20000).ids.bincount(minlength=5) / 20000
    expected = filter_logits(scores[:1], [SamplingParams(top_p=0.98)]).softmax(-1)[0]
    assert expected[3] > 0
    torch.testing.assert_close(counts, expected, atol=0.015, rtol=0)
    assert counts[4] == 0


def test_log_probs_are_raw() -> None:
    scores = logits(2).bfloat16()
    params = [SamplingParams(temperature=0.3, top_k=2, seed=1), SamplingParams(temperature=0, repetition_penalty=2.0)]
    made = sample(scores, params, [[], [1]], [generator_for(p) for p in params], log_probs=True)
    expected = scores.float().log_softmax(-1).gather(-1, made.ids[:, None])[:, 0]
    assert made.log_probs is not None
    torch.testing.assert_close(made.log_probs, expected)
    assert sample(scores, [GREEDY] * 2).log_probs is None


def test_forbidden_ids_are_not_chosen() -> None:
    scores = logits(2)
    best = int(scores[0].argmax())
    ids = sample(scores, [GREEDY, GREEDY], forbidden=[{best, 999}, set()]).ids
    assert ids[0] == scores[0].topk(2).indices[1]
    assert ids[1] == scores[1].argmax()
    drawn = [SamplingParams(top_k=1)] * 2
    assert sample(scores, drawn, forbidden=[{best}, set()]).ids[0] == ids[0]


class Counting(TorchDispatchMode):
    """Counts the operations that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_a_greedy_batch_is_one_argmax_and_no_row_pays_for_a_sort_it_does_not_need() -> None:
    with Counting() as greedy:
        sample(logits(8), [GREEDY] * 8, [[1]] * 8, [None] * 8)
    assert [name for name in greedy.names if not name.startswith(("randn", "mul", "empty"))] == ["argmax.default"]
    with Counting() as drawn:
        sample(logits(2), [SamplingParams(min_p=0.1), SamplingParams(top_k=0)])
    assert not any(name.startswith(("sort", "topk")) for name in drawn.names)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -1}, "temperature: .*greater than or equal to 0"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p: .*greater than 0, not 0"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens 5 is more than max_tokens 4"),
        ({"stop": ["a", ""]}, "empty stop string"),
        ({"temprature": 1}, "temprature: there is no such sampling parameter; did you mean temperature"),
    ],
)
def test_bad_parameters_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SamplingParams(**values)


def test_zero_is_honoured_and_one_stop_string_may_stand_alone() -> None:
    params = SamplingParams(temperature=0, stop="END")
    assert params.greedy
    assert params.stop == ("END",)
    assert not SamplingParams().greedy
