"""The sampler: filters and penalties as transformers has them, rows that do not disturb each other, fair draws."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from intaglio.engine import sampler
from intaglio.engine.chooser import Chooser
from intaglio.engine.sampler import _likelier, _pick, _reaches, _weights, choose
from intaglio.engine.sampling_params import SamplingParams, Structured
from intaglio.text.tokenizer import Tokenizer
from toy_tokenizers import byte_level

V = 50
GREEDY = SamplingParams(temperature=0)
TOKENIZER = Tokenizer(byte_level())


def logits(rows: int = 1, seed: int = 0, vocab: int = V) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def choosers(*params: SamplingParams, context: tuple[int, ...] = (), vocab: int = V) -> list[Chooser]:
    return [Chooser(p, TOKENIZER, vocab, context) for p in params]


def chosen(scores: Tensor, *params: SamplingParams, context: tuple[int, ...] = ()) -> list[int]:
    ids: list[int] = choose(scores, choosers(*params, context=context, vocab=scores.shape[-1])).ids.tolist()
    return ids


def grow(
    scores: Tensor, params: SamplingParams, steps: int, context: tuple[int, ...] = (), choice: int = 0
) -> list[int]:
    """What is made where the logits (1, V) are always the same."""
    chooser = Chooser(params, TOKENIZER, scores.shape[-1], context, choice)
    for _ in range(steps):
        chooser.take(int(choose(scores, [chooser]).ids))
    return chooser.made


# Filters and draws


def warpers(p: SamplingParams) -> LogitsProcessorList:
    steps: list[Any] = [TemperatureLogitsWarper(float(p.temperature))]
    steps += [MinPLogitsWarper(p.min_p)] if p.min_p else []
    steps += [TopKLogitsWarper(p.top_k)] if p.top_k > 0 else []
    steps += [TopPLogitsWarper(p.top_p)] if p.top_p < 1 else []
    return LogitsProcessorList(steps)


def theirs(scores: Tensor, params: list[SamplingParams]) -> Tensor:
    """(B, V): each token's probability."""
    return torch.cat([warpers(p)(None, scores[i : i + 1]) for i, p in enumerate(params)]).softmax(dim=-1)


def ours(scores: Tensor, params: list[SamplingParams]) -> Tensor:
    """The same: the weights of the tokens that would be accepted, were they drawn."""
    weights = _weights(scores.clone(), params)
    rows, vocab = weights.shape
    limits = torch.tensor([p.top_p for p in params]) * weights.sum(dim=-1)
    drawn = weights.repeat_interleave(vocab, dim=0)  # each token of each row in turn
    outside = _reaches(_likelier(drawn, torch.arange(vocab).repeat(rows)), limits.repeat_interleave(vocab))
    limited = torch.tensor([p.top_p < 1 for p in params])[:, None]
    kept = weights * ~(outside.view(rows, vocab) & limited)
    return kept / kept.sum(dim=-1, keepdim=True)


PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0.1, 3),
    top_k=st.sampled_from([-1, 0, 1, 3, 49, 50, 80]),
    top_p=st.sampled_from([1.0, 0.95, 0.9, 0.5, 0.1, 1e-6]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)


@settings(max_examples=40)
@given(params=st.lists(PARAMS, min_size=1, max_size=5), seed=st.integers(0, 99))
def test_filters_equal_transformers_row_by_row(params: list[SamplingParams], seed: int) -> None:
    scores = logits(len(params), seed)
    torch.testing.assert_close(ours(scores, params), theirs(scores, params), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("sharpness", [0.5, 8.0])
def test_filters_equal_transformers_on_flat_and_sharp_rows_of_a_larger_vocabulary(sharpness: float) -> None:
    scores = logits(4, 3, 1500) * sharpness / 3
    params = [SamplingParams(top_p=0.9), SamplingParams(top_k=40), SamplingParams(top_p=0.5), SamplingParams(top_k=700)]
    torch.testing.assert_close(ours(scores, params), theirs(scores, params), atol=1e-6, rtol=1e-5)


def test_of_equally_likely_tokens_at_the_border_all_are_kept() -> None:
    scores = torch.tensor([[0.0, 2.0, 1.0, 1.0, 1.0, -1.0]])
    for params in (SamplingParams(top_k=2), SamplingParams(top_p=0.45), SamplingParams(top_p=0.7)):
        assert (ours(scores, [params]) > 0).tolist() == [[False, True, True, True, True, False]]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(top_p=0.98),
        SamplingParams(top_p=0.6, temperature=2.0),
        SamplingParams(top_k=3, top_p=0.9),
        SamplingParams(min_p=0.1),
    ],
)
def test_draws_have_the_models_probabilities(params: SamplingParams) -> None:
    scores = torch.tensor([[2.0, -1.0, 1.0, 0.0, float("-inf"), 0.5, -3.0]])
    torch.manual_seed(0)
    ids = choose(scores.expand(20000, -1), choosers(params, vocab=7) * 20000).ids
    expected = theirs(scores, [params])[0]
    counts = ids.bincount(minlength=7)
    torch.testing.assert_close(counts / 20000, expected, atol=0.015, rtol=0)
    assert torch.equal(counts == 0, expected == 0) or expected[expected > 0].min() < 1e-3


def test_a_draw_finds_every_place_of_a_row() -> None:
    for vocab in (1, 2, 9, 10, 101):
        scores = torch.full((vocab, vocab), -100.0).fill_diagonal_(0.0)
        ids = choose(scores, choosers(SamplingParams(), vocab=vocab) * vocab).ids
        assert ids.tolist() == list(range(vocab))


@pytest.mark.parametrize(("share", "place"), [(0.0, 1), (0.24, 1), (0.25, 3), (0.9999, 3), (1.0, 3)])
def test_no_share_falls_on_a_token_without_weight(share: float, place: int) -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0, 3.0, 0.0]])
    assert _pick(weights, torch.tensor([[share]], dtype=torch.float64)).tolist() == [[place]]


def test_temperature_0_is_argmax_beside_rows_that_are_drawn() -> None:
    scores = logits(4)
    params = [GREEDY, SamplingParams(seed=1), SamplingParams(temperature=1e-7), SamplingParams(top_k=1)]
    ids = choose(scores, choosers(*params)).ids
    assert ids.dtype == torch.int64
    assert torch.equal(ids[[0, 2, 3]], scores.argmax(-1)[[0, 2, 3]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_equal_logits_greedy_takes_the_first(dtype: torch.dtype) -> None:
    scores = torch.randint(0, 4, (8, 3000), generator=torch.Generator().manual_seed(0)).to(dtype)
    assert chosen(scores, *[GREEDY] * 8) == scores.float().argmax(-1).tolist()
    changed = SamplingParams(temperature=0, presence_penalty=0.1)
    assert chosen(scores, *[GREEDY, changed] * 4) == scores.float().argmax(-1).tolist()


def test_rows_are_looked_at_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = logits(9)
    params = [GREEDY, SamplingParams(seed=1), SamplingParams(temperature=0, presence_penalty=1)] * 3
    whole = chosen(scores, *params)
    monkeypatch.setattr(sampler, "AT_ONCE", 2 * V)
    assert chosen(scores, *params) == whole


# Seeds


def test_a_seeded_row_does_not_depend_on_its_mates() -> None:
    scores, seeded = logits(3), SamplingParams(seed=7, top_p=0.9)

    def drawn(params: list[SamplingParams], place: int) -> list[int]:
        rows = torch.stack([scores[1] if i == place else scores[2] for i in range(len(params))])
        every = choosers(*params)
        return [int(choose(rows, every).ids[place]) for _ in range(20)]

    alone = drawn([seeded], 0)
    assert len(set(alone)) > 1
    assert drawn([SamplingParams(), GREEDY, seeded], 2) == alone
    assert drawn([seeded, SamplingParams(seed=7), SamplingParams(top_k=3, min_p=0.1)], 0) == alone


def test_each_choice_of_a_seed_draws_its_own_and_again_the_same() -> None:  # case 16
    params = SamplingParams(n=3, seed=7)
    flat = torch.zeros(1, V)
    first, again = [[grow(flat, params, 8, choice=choice) for choice in range(3)] for _ in range(2)]
    assert first == again
    assert len({tuple(made) for made in first}) == 3
    assert grow(flat, SamplingParams(seed=8), 8) != first[0]


def test_without_a_seed_the_process_decides() -> None:
    def drawn(seed: int) -> list[int]:
        torch.manual_seed(seed)
        return grow(torch.zeros(1, V), SamplingParams(), 8)

    assert drawn(0) == drawn(0) != drawn(1)


# Penalties, bias, bans


def test_repetition_penalty_equals_transformers() -> None:
    scores, penalties = logits(3), [1.3, 1.0, 0.7]
    contexts = [[1, 1, 4, 49, 70], [2], [3, 3, 9]]
    every = [
        Chooser(SamplingParams(temperature=0, repetition_penalty=penalty), TOKENIZER, V, context)
        for penalty, context in zip(penalties, contexts, strict=True)
    ]
    untouched = scores.clone()
    for _ in range(4):
        ids = choose(scores, every).ids.tolist()
        for row, penalty in enumerate(penalties):
            occurred = torch.tensor([[i for i in [*contexts[row], *every[row].made] if i < V]])
            expected = RepetitionPenaltyLogitsProcessor(penalty)(occurred, scores[row : row + 1].clone())
            assert ids[row] == expected.argmax()
            every[row].take(ids[row])
    assert torch.equal(scores, untouched)


def test_a_penalty_changes_what_is_drawn_as_in_transformers() -> None:
    scores, params = logits(1), SamplingParams(repetition_penalty=5.0, top_k=1)
    best = tuple(int(i) for i in scores[0].topk(5).indices)
    expected = RepetitionPenaltyLogitsProcessor(5.0)(torch.tensor([best]), scores.clone()).argmax()
    assert chosen(scores, params, context=best) == [expected] != [best[0]]


def test_the_prompt_counts_for_repetition_and_not_for_presence() -> None:  # case 18
    scores = torch.zeros(1, V)
    scores[0, 7], scores[0, 8] = 1.0, 0.9
    prompt = (7, 7, 7)
    assert grow(scores, SamplingParams(temperature=0, repetition_penalty=2.0), 1, prompt) == [8]
    assert grow(scores, SamplingParams(temperature=0, presence_penalty=0.5), 3, prompt) == [7, 8, 7]
    assert grow(scores, SamplingParams(temperature=0, frequency_penalty=0.06), 6, prompt) == [7, 7, 8, 7, 8, 7]
    assert grow(scores, SamplingParams(temperature=0, frequency_penalty=-1), 3, prompt) == [7, 7, 7]


def test_the_prompt_counts_for_repetition_alone_where_both_are_asked_for() -> None:  # case 18
    scores = torch.zeros(1, V)
    scores[0, 7], scores[0, 8], scores[0, 9] = 1.0, 0.9, 0.8
    both = SamplingParams(temperature=0, repetition_penalty=1.05, presence_penalty=0.5)
    assert grow(scores, both, 4, (7, 7, 7)) == [7, 8, 9, 7]  # 0.95, then 0.45; 0.9, then 0.36; 0.8, then 0.26


def test_penalties_of_many_tokens_are_what_plain_arithmetic_gives() -> None:
    scores = logits(1) / 6
    params = SamplingParams(temperature=0, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2)
    made: list[int] = []
    for _ in range(40):
        expected = [
            (x / 1.2 if x > 0 else x * 1.2) - 0.3 * (made.count(i) > 0) - 0.2 * made.count(i) if i in made else x
            for i, x in enumerate(scores[0].tolist())
        ]
        made.append(max(range(V), key=lambda i: expected[i]))
    assert len(set(made)) > 16
    assert grow(scores, params, 40) == made


def test_a_bias_is_added_before_the_penalties() -> None:
    scores = torch.zeros(1, V)
    scores[0, 7] = 1.0
    assert chosen(scores, SamplingParams(temperature=0, logit_bias={9: 1.1, 7: 0.05})) == [9]
    assert chosen(scores, SamplingParams(temperature=0, logit_bias={9: 1.1}, repetition_penalty=1.2), context=(9,)) == [
        7
    ]
    assert chosen(scores.expand(3, -1), SamplingParams(logit_bias={3: 100.0}), GREEDY, GREEDY) == [3, 7, 7]


def test_only_allowed_tokens_are_chosen() -> None:
    scores = logits(2)
    allowed = sorted(scores[0].topk(9).indices.tolist()[5:])
    best = max(allowed, key=lambda i: float(scores[0, i]))
    assert chosen(scores, SamplingParams(temperature=0, allowed_token_ids=allowed), GREEDY) == [
        best,
        int(scores[1].argmax()),
    ]
    drawn = grow(torch.zeros(1, V), SamplingParams(allowed_token_ids=allowed, seed=0), 60)
    assert sorted(set(drawn)) == allowed


def test_a_shape_masks_its_own_row_alone() -> None:
    vocab = TOKENIZER.vocab_size
    digits = SamplingParams(structured=Structured(kind="regex", value="[0-9]{4}"), seed=1)
    every = choosers(digits, GREEDY, digits.model_copy(update={"temperature": 0.0}), vocab=vocab)
    scores = logits(3, vocab=vocab)
    for _ in range(4):
        ids = choose(scores, every).ids.tolist()
        assert ids[1] == scores[1].argmax()
        for chooser, token_id in zip(every, ids, strict=True):
            chooser.take(token_id)
    assert all(len(TOKENIZER.decode(every[row].made)) == 4 and every[row].over for row in (0, 2))
    assert TOKENIZER.decode(every[0].made).isdigit()
    assert not every[1].over


# Log-probabilities


def test_log_probs_are_raw() -> None:
    scores = logits(3).bfloat16()
    params = [
        SamplingParams(temperature=0.3, top_k=2, seed=1, logprobs=0),
        SamplingParams(temperature=0, repetition_penalty=2.0, logit_bias={3: 50}, logprobs=2),
        GREEDY,
    ]
    made = choose(scores, choosers(*params, context=(1,)))
    expected = scores.float().log_softmax(-1).gather(-1, made.ids[:, None])[:, 0].tolist()
    first, second, third = made.logprobs
    assert first is not None
    assert second is not None
    assert [first.log_prob, second.log_prob] == pytest.approx(expected[:2])
    assert (first.top, len(second.top), second.token_id, third) == ((), 2, 3, None)


# What it costs


class Counting(TorchFunctionMode):
    """Counts what is asked of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names += [] if func.__name__ == "__get__" else [func.__name__]
        return func(*args, **(kwargs or {}))


def test_a_greedy_batch_is_one_maximum_and_no_row_is_sorted() -> None:
    scores, greedy, drawn = logits(8), Counting(), Counting()
    with greedy:
        choose(scores, choosers(*[GREEDY] * 8))
    assert greedy.names == ["max"]
    every = choosers(SamplingParams(min_p=0.1), SamplingParams(top_p=0.5), SamplingParams(logprobs=0))
    with drawn:
        choose(scores[:3], every)
    assert "softmax" in drawn.names
    assert not {"sort", "argsort", "topk"} & {*drawn.names}
