"""The engine: whatever runs together, in whatever pieces and blocks, each text is the plain forward's."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.engine.engine import Engine, EngineConfig, Output
from intaglio.engine.generate import Desk
from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.parts.context import Causal, Packed
from tiny_specs import LATENT, MOE, ZOO, attention, block, decoder
from toy_llms import random_model, toy_tokenizer

TOKENIZER = toy_tokenizer()
CLOSE = 1e-4
NTK = {"scaling": {"kind": "dynamic", "factor": 4.0, "original_max_position_embeddings": 16}}
FAMILIES = {
    "grouped": ZOO["GQA"],
    "one local, one global": ZOO["dense and banded in turn"],
    "soft-capped windows": decoder(
        block(attention=attention(softcap=5.0, num_kv_heads=2, window=5)), block(attention=attention(window=9))
    ),
    "latent, experts": decoder(block(attention=LATENT, feed_forward=MOE, repeat=2)),
    "dynamic": decoder(block(repeat=2, attention=attention(rope=NTK)), max_position_embeddings=16),
}
PROMPTS = [[7, 3, 11, 5, 9], [40, 41, 42, 43, 44, 45, 46, 47, 48, 49], [5], [9, 9, 30, 31, 12, 13]]
every_family = pytest.mark.parametrize("name", FAMILIES)


@cache
def model_of(name: str) -> Decoder:
    return random_model(FAMILIES[name])


def greedy(count: int, **fields: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": count, "ignore_eos": True, "logprobs": 0, **fields})


def engine_of(name: str, **config: Any) -> Engine:
    return Engine(model_of(name), TOKENIZER, EngineConfig(**{"num_blocks": 64, "block_size": 4, **config}))


def drain(engine: Engine, steps: int = 1000) -> Iterator[Output]:
    for _ in range(steps):
        if not engine.has_work:
            return
        yield from engine.step()
    raise AssertionError("it does not end")


def run(engine: Engine, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[list[Output]]:
    """The outputs for each prompt, all choices one behind the other."""
    for row, (prompt, p) in enumerate(zip(prompts, params, strict=True)):
        engine.add(str(row), prompt, p)
    rows: list[list[Output]] = [[] for _ in prompts]
    for output in drain(engine):
        rows[int(output.request_id)].append(output)
    return [sorted(row, key=lambda output: output.choice) for row in rows]


def ids(outputs: Sequence[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def log_probs(outputs: Sequence[Output]) -> list[float]:
    return [one.log_prob for output in outputs for one in output.logprobs or []]


class Planned(Causal):
    """An uncached forward whose row was planned for a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def planned(self, positions: torch.Tensor) -> torch.Tensor:
        return positions.new_full((1, 1), self.length)


@cache
@torch.no_grad()
def uncached(name: str, prompt: tuple[int, ...], count: int) -> list[int]:
    """The likeliest tokens, each from a whole forward."""
    known = list(prompt)
    for _ in range(count):
        logits = model_of(name)(torch.tensor([known]), context=Planned(len(prompt) + count))
        known.append(int(logits[0, -1].argmax()))
    return known[len(prompt) :]


def all_free(engine: Engine) -> bool:
    stats = engine.stats()
    return (stats.running, stats.waiting, stats.free_blocks) == (0, 0, stats.num_blocks)


@every_family
@settings(max_examples=4)
@given(data=st.data())
def test_any_schedule_gives_the_uncached_texts(name: str, data: st.DataObject) -> None:
    """Any budget, block size and pool: chunks, preemptions, prefix hits and those who give up change nothing."""
    block_size = data.draw(st.sampled_from([1, 2, 4, 16]))
    engine = engine_of(
        name,
        block_size=block_size,
        num_blocks=-(-24 // block_size) + data.draw(st.integers(0, 30 // block_size)),
        max_tokens_per_step=data.draw(st.sampled_from([1, 3, 7, 64])),
        max_sequences=data.draw(st.sampled_from([1, 2, 8])),
        prefix_caching=data.draw(st.booleans()),
    )
    prompts = [data.draw(st.sampled_from(PROMPTS)) for _ in range(data.draw(st.integers(1, 5)))]
    counts = [data.draw(st.sampled_from([1, 6, 14])) for _ in prompts]
    made: dict[str, list[int]] = {str(row): [] for row in range(len(prompts))}
    for row, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
        engine.add(str(row), prompt, greedy(count))
        for _ in range(data.draw(st.integers(0, 3))):
            for output in engine.step():
                made[output.request_id] += output.token_ids
        if data.draw(st.integers(0, 3)) == 0:
            engine.abort(str(row))
            del made[str(row)]
    for output in drain(engine):
        made[output.request_id] += output.token_ids
    assert made == {row: uncached(name, tuple(prompts[int(row)]), counts[int(row)]) for row in made}
    assert all_free(engine)


def test_a_small_pool_preempts_and_the_texts_are_the_same() -> None:
    engine = engine_of("grouped", num_blocks=7)
    params = [greedy(14)] * 4
    rows = run(engine, PROMPTS, params)
    assert engine.stats().preemptions > 0
    assert [ids(row) for row in rows] == [uncached("grouped", tuple(prompt), 14) for prompt in PROMPTS]
    assert all_free(engine)


@every_family
def test_the_same_request_again_says_the_same(name: str) -> None:
    """Case 15: a prefix that is found in the cache changes no probability beyond rounding."""
    engine, prompt = engine_of(name), PROMPTS[1]
    (first,), (again,) = run(engine, [prompt], [greedy(8)]), run(engine, [prompt], [greedy(8)])
    assert (first[0].cached_tokens, again[0].cached_tokens) == (0, 8)
    assert ids(first) == ids(again)
    assert log_probs(first) == pytest.approx(log_probs(again), abs=CLOSE)
    stats = engine.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (20, 8)


@every_family
def test_deterministic_texts_do_not_depend_on_their_batch_mates(name: str) -> None:
    """Case 14, bit for bit: alone and with seven others, in one piece and in many, found in the cache and not."""
    alone = engine_of(name, deterministic=True, prefix_caching=False)
    (expected,) = run(alone, PROMPTS[:1], [greedy(20)])
    crowd = engine_of(name, deterministic=True, max_tokens_per_step=5)
    for _ in range(2):
        rows = run(crowd, [PROMPTS[0], *PROMPTS[1:], *PROMPTS], [greedy(20)] * 8)
        for row in (rows[0], rows[4]):
            assert ids(row) == ids(expected)
            assert log_probs(row) == log_probs(expected)
    assert rows[0][0].cached_tokens == 4


@every_family
@torch.no_grad()
def test_log_probabilities_are_those_of_the_training_forward(name: str) -> None:
    """Of prompts and of what was made, while others run, against documents packed end to end."""
    params = [greedy(6, prompt_logprobs=2, logprobs=3), greedy(6), SamplingParams(seed=1, max_tokens=6, logprobs=0)]
    rows = run(engine_of(name, max_tokens_per_step=6), PROMPTS[:3], params)
    for prompt, row in zip(PROMPTS, rows, strict=False):
        text = [*prompt, *ids(row)]
        positions = torch.arange(len(text))[None]
        told = model_of(name)(torch.tensor([text]), positions, Packed([len(text)]))[0].log_softmax(dim=-1)
        expected = told[:-1].gather(-1, torch.tensor(text[1:])[:, None])[:, 0].tolist()
        assert log_probs(row) == pytest.approx(expected[len(prompt) - 1 :], abs=CLOSE)
        if row[0].prompt_logprobs is not None:
            first, *rest = row[0].prompt_logprobs
            assert first is None
            assert [one.token_id for one in rest if one] == prompt[1:]
            assert [one.log_prob for one in rest if one] == pytest.approx(expected[: len(prompt) - 1], abs=CLOSE)
            assert [len(one.top) for one in rest if one] == [2] * (len(prompt) - 1)
    assert [row[0].prompt_logprobs is None for row in rows] == [False, True, True]
    assert all(output.prompt_logprobs is None for row in rows for output in row[1:])
    assert [len(one.top) for output in rows[0] for one in output.logprobs or []] == [3] * 6


@pytest.mark.parametrize("first", range(1, len(PROMPTS[1]) + 1))
def test_prompt_log_probabilities_from_a_token_on_may_follow_a_cached_prefix(first: int) -> None:
    (whole,) = run(engine_of("grouped"), [PROMPTS[1]], [greedy(2, prompt_logprobs=0)])
    engine = engine_of("grouped")
    run(engine, [PROMPTS[1]], [greedy(2)])
    (part,) = run(engine, [PROMPTS[1]], [greedy(2, prompt_logprobs=0, prompt_logprobs_from=first)])
    assert part[0].cached_tokens == (first - 1) // 4 * 4
    assert whole[0].prompt_logprobs is not None
    assert part[0].prompt_logprobs is not None
    assert part[0].prompt_logprobs[:first] == [None] * first
    told, expected = part[0].prompt_logprobs[first:], whole[0].prompt_logprobs[first:]
    assert [one and one.token_id for one in told] == PROMPTS[1][first:]
    assert [one.log_prob for one in told if one] == pytest.approx([one.log_prob for one in expected if one], abs=CLOSE)


def test_prompt_log_probabilities_begin_in_the_prompt() -> None:
    with pytest.raises(UserError, match="4 is beyond the prompt, which has 3 tokens"):
        run(engine_of("grouped"), [[1, 2, 3]], [greedy(2, prompt_logprobs=0, prompt_logprobs_from=4)])


def test_prompt_log_probabilities_read_no_prefix_and_survive_preemption() -> None:
    whole = run(engine_of("grouped"), [PROMPTS[1]], [greedy(2, prompt_logprobs=0)])[0][0].prompt_logprobs
    engine = engine_of("grouped", num_blocks=8, max_tokens_per_step=4)
    run(engine, [PROMPTS[1]], [greedy(2)])
    rows = run(engine, [PROMPTS[0], PROMPTS[3], PROMPTS[1]], [greedy(18), greedy(18), greedy(2, prompt_logprobs=0)])
    again = rows[2][0].prompt_logprobs
    assert rows[2][0].cached_tokens == 0
    assert whole is not None
    assert again is not None
    assert [one and one.token_id for one in again] == [one and one.token_id for one in whole]
    assert [one.log_prob for one in again if one] == pytest.approx([one.log_prob for one in whole if one], abs=CLOSE)


def test_choices_share_the_prompt_and_then_go_their_own_ways() -> None:
    """Case 16, and the prompt is read once."""
    engine, params = engine_of("grouped"), SamplingParams(n=3, seed=7, max_tokens=8, ignore_eos=True)
    (row,) = run(engine, [PROMPTS[1]], [params])
    choices = [[output for output in row if output.choice == choice] for choice in range(3)]
    texts = [ids(choice) for choice in choices]
    assert len({tuple(text) for text in texts}) == 3
    assert [choice[-1].finish_reason for choice in choices] == ["length"] * 3
    assert all_free(engine)
    crowd = engine_of("grouped", num_blocks=8, max_sequences=2)  # two of the three must wait, or be preempted
    rows = run(crowd, [PROMPTS[0], PROMPTS[1]], [greedy(9), params])
    assert [ids([o for o in rows[1] if o.choice == choice]) for choice in range(3)] == texts
    assert ids(rows[0]) == uncached("grouped", tuple(PROMPTS[0]), 9)
    assert all_free(crowd)


def test_a_window_bounds_what_a_long_text_takes() -> None:
    name = "soft-capped windows"
    engine = engine_of(name, block_size=2, num_blocks=8, max_tokens_per_step=4)
    prompt = PROMPTS[1]
    (row,) = run(engine, [prompt], [greedy(20)])
    assert len(prompt) + 20 > 2 * 8
    assert ids(row) == uncached(name, tuple(prompt), 20)


def test_an_abort_frees_everything() -> None:
    engine = engine_of("grouped")
    for row, prompt in enumerate(PROMPTS):
        engine.add(str(row), prompt, greedy(9, n=1 + row % 2, temperature=1.0))
    for _ in range(3):
        engine.step()
    for row in (0, 1, 1, 2, 3, 99):
        engine.abort(str(row))
    assert not engine.has_work
    assert all_free(engine)
    engine.add("0", PROMPTS[0], greedy(3))
    assert ids(list(drain(engine))) == uncached("grouped", tuple(PROMPTS[0]), 3)


def test_it_counts() -> None:
    engine = engine_of("grouped")
    run(engine, PROMPTS[:2], [greedy(3), greedy(5)])
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.generated_tokens, stats.preemptions) == (15, 8, 0)


def test_who_ended_it_is_told_if_it_was_asked_for() -> None:
    free = uncached("grouped", tuple(PROMPTS[0]), 5)
    (row,) = run(engine_of("grouped"), PROMPTS[:1], [greedy(9, stop_token_ids=(free[3],))])
    first = free.index(free[3])
    assert (len(row), row[-1].finish_reason, row[-1].stop_reason) == (first + 1, "stop", free[3])
    assert all((output.finish_reason, output.stop_reason) == (None, None) for output in row[:-1])


@pytest.mark.parametrize(
    ("prompt", "fields", "message"),
    [
        ([], {}, "the prompt is empty"),
        ([64], {}, "token 64 is beyond the model's vocabulary of 64"),
        ([-1], {}, "token -1 is beyond"),
        ([1] * 30, {"max_tokens": 3}, "30 prompt tokens and 3 to be made are more than the 32"),  # case 06
        ([1] * 20, {"max_tokens": 9}, "20 prompt tokens and 9 to be made are more than the 20"),  # case 07
        ([1], {"num_beams": 2}, "beam search makes no pieces"),
    ],
)
def test_what_can_never_be_answered_is_refused_at_once(prompt: list[int], fields: dict[str, Any], message: str) -> None:
    engine = engine_of("grouped", num_blocks=5)
    params = SamplingParams(**{"temperature": 0, "max_tokens": 2, **fields})
    with pytest.raises(UserError, match=message):
        engine.add("0", prompt, params)
    assert not engine.has_work
    engine.add("0", [1, 2], greedy(2))
    assert len(list(drain(engine))) == 2


def test_a_context_beyond_the_models_is_refused() -> None:
    assert engine_of("grouped", max_model_len=20).max_model_len == 20
    with pytest.raises(UserError, match="33 tokens are more than the model's context of 32"):
        engine_of("grouped", max_model_len=33)


def test_without_max_tokens_a_text_fills_what_there_is() -> None:
    engine = engine_of("grouped", num_blocks=5)
    assert engine.max_model_len == 21  # the last token made is never written
    (row,) = run(engine, PROMPTS[:1], [greedy(1).model_copy(update={"max_tokens": None})])
    assert len(PROMPTS[0]) + len(ids(row)) == 21


def test_unlike_salts_share_nothing() -> None:
    engine = engine_of("grouped")
    for salt, cached in ((b"one", 0), (b"two", 0), (b"one", 8)):
        engine.add("0", PROMPTS[1], greedy(1), salt=salt)
        assert [output.cached_tokens for output in drain(engine)] == [cached]


def test_with_dynamic_scaling_only_like_plans_share() -> None:
    """Beyond the trained length keys hang on the length that was planned for."""
    engine = engine_of("dynamic")
    for count, cached in ((2, 0), (3, 8), (20, 0), (21, 0), (20, 8)):
        (row,) = run(engine, [PROMPTS[1]], [greedy(count)])
        assert row[0].cached_tokens == cached
        assert ids(row) == uncached("dynamic", tuple(PROMPTS[1]), count)


def test_callers_share_an_engine() -> None:
    engine = engine_of("grouped")
    desk = Desk(engine)
    one, other = desk.pieces(PROMPTS[:2], [greedy(6)] * 2), desk.pieces(PROMPTS[2:3], [greedy(6)])
    mixed = [(next(one), next(other)) for _ in range(6)]
    rest = list(one)
    other_ids = [piece.token_id for _, piece in mixed]
    assert other_ids == uncached("grouped", tuple(PROMPTS[2]), 6)
    for row in range(2):
        made = [piece.token_id for piece in [*(first for first, _ in mixed), *rest] if piece.row == row]
        assert made == uncached("grouped", tuple(PROMPTS[row]), 6)
    left = desk.pieces(PROMPTS[:2], [greedy(6)] * 2)
    next(left)
    left.close()  # type: ignore[attr-defined]
    assert list(other) == []
    assert all_free(engine)
