"""The generation loop: cached, batched and sampled, it says what the plain forward says."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from intaglio.engine.generate import Piece, generate
from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.parts.context import Causal
from intaglio.specs import DecoderSpec
from tiny_specs import LATENT, MOE, RMS, ZOO, attention, block, decoder
from toy_llms import random_model, toy_tokenizer

TOKENIZER = toy_tokenizer()
PROMPTS = [[7, 3, 11], [40, 41, 42, 43, 44, 45, 46, 47, 48, 49], [5], [9, 9, 30, 31, 12, 13]]
LOCAL = attention(num_kv_heads=2, window=4, qk_norm={"norm": RMS}, rope={"theta": 100.0})
GEMMA = decoder(
    {"repeat": 2, "pattern": [block(repeat=5, placement="sandwich", attention=LOCAL), block(placement="sandwich")]},
    tie_embeddings=True,
    embedding_scale=5.5,
    max_position_embeddings=64,
)
NTK = {"scaling": {"kind": "dynamic", "factor": 4.0, "original_max_position_embeddings": 16}}
DYNAMIC = decoder(block(repeat=2, attention=attention(rope=NTK)), max_position_embeddings=16)
BATCHED: dict[str, DecoderSpec] = {
    "plain": ZOO["GQA"],
    "learned positions": ZOO["learned positions, tied"],
    "windows": GEMMA,
    "latent, experts": decoder(block(attention=LATENT, feed_forward=MOE, repeat=2)),
    "dynamic": DYNAMIC,
}


class Told(Causal):
    """An uncached context whose rows were planned for a given length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def planned(self, positions: Tensor) -> Tensor:
        return positions.new_full((positions.shape[0], 1), self.length)


def greedy(count: int, **fields: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": count, "ignore_eos": True, **fields})


def run(
    model: Decoder, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
) -> list[list[Piece]]:
    """The pieces of each row."""
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    rows: list[list[Piece]] = [[] for _ in prompts]
    for piece in generate(model, TOKENIZER, prompts, each):
        rows[piece.row].append(piece)
    return rows


def ids(pieces: Sequence[Piece]) -> list[int]:
    return [piece.token_id for piece in pieces]


@torch.no_grad()
def uncached(model: Decoder, prompt: Sequence[int], count: int, planned: int | None = None) -> tuple[list[int], Tensor]:
    """Likeliest tokens one after the other, and their log-probabilities, from whole forwards."""
    known = list(prompt)
    for _ in range(count):
        context = Told(planned) if planned else None
        known.append(int(model(torch.tensor([known]), context=context)[0, -1].argmax()))
    return known[len(prompt) :], log_probs_of(model, prompt, known[len(prompt) :], planned)


@torch.no_grad()
def log_probs_of(model: Decoder, prompt: Sequence[int], new: Sequence[int], planned: int | None = None) -> Tensor:
    context = Told(planned) if planned else None
    logits = model(torch.tensor([[*prompt, *new]]), context=context)[0, len(prompt) - 1 : -1]
    return logits.log_softmax(dim=-1).gather(-1, torch.tensor(new)[:, None])[:, 0]


@pytest.mark.parametrize("name", ZOO)
def test_greedy_is_the_argmax_of_the_uncached_forward(name: str) -> None:
    model = random_model(ZOO[name])
    (pieces,) = run(model, [PROMPTS[0]], greedy(24))
    tokens, log_probs = uncached(model, PROMPTS[0], 24)
    assert ids(pieces) == tokens
    torch.testing.assert_close(torch.tensor([piece.log_prob for piece in pieces]), log_probs, rtol=1e-4, atol=1e-4)


def test_a_windowed_model_generates_far_beyond_its_window() -> None:
    model = random_model(GEMMA)
    (pieces,) = run(model, [PROMPTS[3]], greedy(50))  # the prompt alone is longer than the window
    assert ids(pieces) == uncached(model, PROMPTS[3], 50)[0]


@pytest.mark.parametrize("name", BATCHED)
def test_a_batch_of_ragged_prompts_is_each_alone(name: str) -> None:
    model = random_model(BATCHED[name])
    params = [greedy(count) for count in (6, 22, 17, 1)]
    together = run(model, PROMPTS, params)
    for prompt, one, pieces in zip(PROMPTS, params, together, strict=True):
        (alone,) = run(model, [prompt], one)
        assert ids(pieces) == ids(alone)
        assert [piece.text for piece in pieces] == [piece.text for piece in alone]
        assert [p.log_prob for p in pieces] == pytest.approx([p.log_prob for p in alone], abs=1e-4)


@pytest.mark.parametrize("name", BATCHED)
def test_rows_that_fill_the_context_do_not_end_those_that_go_on(name: str) -> None:
    model = random_model(BATCHED[name])
    limit = model.spec.context_limit
    prompts = [list(range(3, 3 + min(limit - 2, 28))), [5, 6]]
    params = [greedy(limit - len(prompt)) for prompt in prompts]
    together = run(model, prompts, params)
    for prompt, one, pieces in zip(prompts, params, together, strict=True):
        assert ids(pieces) == ids(run(model, [prompt], one)[0])
        assert len(prompt) + len(pieces) == limit


def test_a_seeded_row_does_not_depend_on_its_batch_mates() -> None:
    model = random_model(BATCHED["plain"])
    params = [
        SamplingParams(temperature=1.2, top_k=20, top_p=0.9, seed=seed, max_tokens=15, ignore_eos=True)
        for seed in (1, 2, 3, 1)
    ]
    together = run(model, PROMPTS, params)
    alone = [run(model, [prompt], one)[0] for prompt, one in zip(PROMPTS, params, strict=True)]
    assert [ids(row) for row in together] == [ids(row) for row in alone]
    backwards = run(model, PROMPTS[::-1], params[::-1])[::-1]
    assert [ids(row) for row in backwards] == [ids(row) for row in alone]
    other = params[0].model_copy(update={"seed": 9})
    assert ids(run(model, PROMPTS[:1], other)[0]) != ids(alone[0])


def test_greedy_and_sampled_rows_share_a_batch() -> None:
    model = random_model(BATCHED["plain"])
    sampled = SamplingParams(temperature=1.5, seed=4, max_tokens=12, ignore_eos=True)
    first, second = run(model, [PROMPTS[0], PROMPTS[0]], [greedy(12), sampled])
    assert ids(first) == uncached(model, PROMPTS[0], 12)[0]
    assert ids(second) != ids(first)


def test_log_probabilities_are_the_models_own_whatever_the_sampling() -> None:
    model = random_model(BATCHED["plain"])
    params = SamplingParams(temperature=0.5, top_k=5, repetition_penalty=1.5, seed=0, max_tokens=12, ignore_eos=True)
    (pieces,) = run(model, [PROMPTS[1]], params)
    wanted = log_probs_of(model, PROMPTS[1], ids(pieces))
    torch.testing.assert_close(torch.tensor([piece.log_prob for piece in pieces]), wanted, rtol=1e-4, atol=1e-4)


def test_a_repetition_penalty_counts_the_prompt_and_what_was_made() -> None:
    model = random_model(BATCHED["plain"])
    (pieces,) = run(model, [PROMPTS[0]], greedy(25, repetition_penalty=1e9))
    everything = [*PROMPTS[0], *ids(pieces)]
    assert len(set(everything)) == len(everything)


@pytest.mark.parametrize("new", [3, 20, 50, 63])
def test_dynamic_scaling_turns_all_keys_by_the_base_of_the_planned_length(new: int) -> None:
    model = random_model(DYNAMIC)
    assert model.spec.context_limit == 64
    (pieces,) = run(model, [[5]], greedy(new))
    tokens, log_probs = uncached(model, [5], new, planned=1 + new)
    assert ids(pieces) == tokens
    torch.testing.assert_close(torch.tensor([piece.log_prob for piece in pieces]), log_probs, rtol=1e-4, atol=1e-4)


def test_dynamic_scaling_beyond_the_trained_length_depends_on_the_plan() -> None:
    model = random_model(DYNAMIC)
    short, long = log_probs_of(model, [5], range(6, 30), 30), log_probs_of(model, [5], range(6, 30), 64)
    assert (short - long).abs().max() > 1e-3


def test_end_tokens_end_a_row_and_only_that_row() -> None:
    model = random_model(BATCHED["plain"])
    free = [ids(row) for row in run(model, PROMPTS[:2], greedy(20))]
    end = next(token for token in free[0][3:] if token not in free[1] and token not in free[0][:3])
    first, second = run(model, PROMPTS[:2], greedy(20, stop_token_ids=(end,)))
    assert ids(first) == free[0][: free[0].index(end) + 1]
    assert (first[-1].finish_reason, first[-2].finish_reason) == ("stop", None)
    assert ids(second) == free[1]
    assert second[-1].finish_reason == "length"


@pytest.mark.parametrize("end", [0, 2])
def test_each_of_several_eos_ids_ends_a_row(end: int) -> None:
    model = random_model(BATCHED["plain"])
    assert TOKENIZER.eos_token_ids == {0, 2}
    make_likeliest_after(model, PROMPTS[0], 4, end)
    (pieces,) = run(model, [PROMPTS[0]], greedy(20, ignore_eos=False))
    assert ids(pieces)[-1] == end
    assert pieces[-1].finish_reason == "stop"
    assert len(pieces) <= 5
    (ignored,) = run(model, [PROMPTS[0]], greedy(20))
    assert len(ignored) == 20


@torch.no_grad()
def make_likeliest_after(model: Decoder, prompt: Sequence[int], count: int, token: int) -> None:
    """Makes `token` the next one after `count` greedy ones, at the latest; no other EOS comes before."""
    model.lm_head.weight[list(TOKENIZER.eos_token_ids)] = 0
    known = [*prompt, *uncached(model, prompt, count)[0]]
    hidden = model.hidden_states(torch.tensor([known]))[0, -1]
    model.lm_head.weight[token] = hidden / hidden.norm() * 100


def test_nothing_ends_a_row_before_min_tokens() -> None:
    model = random_model(BATCHED["plain"])
    make_likeliest_after(model, PROMPTS[0], 1, 2)
    (early,) = run(model, [PROMPTS[0]], greedy(20, ignore_eos=False))
    assert len(early) <= 2
    (late,) = run(model, [PROMPTS[0]], greedy(20, ignore_eos=False, min_tokens=9))
    assert len(late) >= 9
    assert 2 not in ids(late)[:9]


def test_max_tokens_is_exact_and_by_default_fills_the_context() -> None:
    model = random_model(BATCHED["plain"])
    (one,) = run(model, [PROMPTS[0]], greedy(1))
    assert [piece.finish_reason for piece in one] == ["length"]
    (all_there_is,) = run(model, [PROMPTS[0]], greedy(5).model_copy(update={"max_tokens": None}))
    assert len(all_there_is) == model.spec.max_position_embeddings - len(PROMPTS[0])
    assert all_there_is[-1].finish_reason == "length"


def test_ids_beyond_the_tokenizer_are_no_text() -> None:
    spec = decoder(vocab_size=2000, max_position_embeddings=64)
    model = random_model(spec)
    (pieces,) = run(model, [PROMPTS[0]], greedy(40))
    unknown = [piece for piece in pieces if TOKENIZER.token(piece.token_id) is None]
    assert len(unknown) > 20
    assert "".join(piece.text for piece in pieces) == TOKENIZER.decode(ids(pieces))


@pytest.mark.parametrize(
    ("prompt", "count", "message"),
    [
        ([], 5, r"prompt 2: the prompt is empty"),
        ([64], 5, r"prompt 2: token 64 is beyond the model's vocabulary of 64"),
        ([1] * 20, 13, r"prompt 2: 20 tokens and 13 new ones do not fit into a context of 32; at most 12 new ones do"),
        ([1] * 32, 1, r"prompt 2: 32 tokens do not fit into a context of 32"),
        ([1] * 99, None, r"prompt 2: 99 tokens do not fit into a context of 32"),
    ],
)
def test_what_cannot_be_continued_is_refused_before_anything_runs(
    prompt: list[int], count: int | None, message: str
) -> None:
    model = random_model(BATCHED["plain"])
    params = [greedy(5), greedy(5).model_copy(update={"max_tokens": count})]
    with pytest.raises(UserError, match=message):
        generate(model, TOKENIZER, [[1], prompt], params)


def test_an_iterator_that_is_dropped_leaves_no_inference_mode_behind() -> None:
    model = random_model(BATCHED["plain"])
    pieces = generate(model, TOKENIZER, [PROMPTS[0]], [greedy(9)])
    next(pieces)
    assert not torch.is_inference_mode_enabled()
    pieces.close()  # type: ignore[attr-defined]
    assert not torch.is_inference_mode_enabled()
