"""Sessions of every kind of model: cached decoding is the full review, alone and in ragged batches."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from intaglio.engine.full_review import FullReview
from intaglio.engine.generate import Piece, generate
from intaglio.engine.sampling_params import SamplingParams
from intaglio.engine.session import DecoderSession, EncoderDecoderSession, RecurrentSession, Session
from intaglio.errors import UserError
from intaglio.models.encoder_decoder import EncoderDecoder
from intaglio.models.recurrent import RecurrentModel
from intaglio.specs import EncoderDecoderSpec, RecurrentSpec, validate
from tiny_pairs import PAIRS, SOURCES, random_pairs_model
from tiny_specs import ZOO
from toy_llms import random_model, toy_tokenizer

CLOSE = 1e-4
TOKENIZER = toy_tokenizer()

every_pair = pytest.mark.parametrize("spec", PAIRS.values(), ids=PAIRS)


def greedy(count: int, **fields: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": count, "ignore_eos": True, **fields})


def run(model: Any, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[list[Piece]]:
    """The pieces of each row."""
    rows: list[list[Piece]] = [[] for _ in prompts]
    for piece in generate(model, TOKENIZER, prompts, params):
        rows[piece.row].append(piece)
    return rows


@torch.no_grad()
def steps(session: Session, prompts: Sequence[Sequence[int]], ids: Tensor) -> Tensor:
    """Logits (B, N + 1, V) while a session is fed ids (B, N)."""
    logits = [session.prefill(prompts)]
    return torch.stack([*logits, *(session.step(column) for column in ids.T)], dim=1)


@torch.no_grad()
def reviewed(model: EncoderDecoder, source: Sequence[int], count: int) -> tuple[list[int], Tensor]:
    """Likeliest tokens from whole forwards over one pair, and their log-probabilities."""
    target = [model.spec.start_token_id]
    for _ in range(count):
        target.append(int(model(torch.tensor([source]), torch.tensor([target]))[0, -1].argmax()))
    logits = model(torch.tensor([source]), torch.tensor([target[:-1]]))[0].log_softmax(dim=-1)
    return target[1:], logits.gather(-1, torch.tensor(target[1:])[:, None])[:, 0]


@every_pair
def test_cached_is_full_review(spec: EncoderDecoderSpec) -> None:
    model, ids = random_pairs_model(spec), torch.randint(0, 64, (4, 12), generator=torch.Generator().manual_seed(3))
    cached = steps(EncoderDecoderSession(model, [13] * 4), SOURCES, ids)
    torch.testing.assert_close(cached, steps(FullReview(model, [13] * 4), SOURCES, ids), rtol=0, atol=CLOSE)
    start = torch.full((4, 1), spec.start_token_id)
    with torch.no_grad():
        for row, source in enumerate(SOURCES):
            whole = model(torch.tensor([source]), torch.cat((start, ids), dim=1)[row : row + 1])[0]
            torch.testing.assert_close(cached[row], whole, rtol=0, atol=CLOSE)


@every_pair
def test_a_batch_of_ragged_sources_is_each_alone(spec: EncoderDecoderSpec) -> None:
    model = random_pairs_model(spec)
    params = [greedy(count) for count in (6, 20, 1, 13)]
    for source, one, pieces in zip(SOURCES, params, run(model, SOURCES, params), strict=True):
        assert one.max_tokens
        tokens, log_probs = reviewed(model, source, one.max_tokens)
        assert [piece.token_id for piece in pieces] == tokens
        assert [piece.log_prob for piece in pieces] == pytest.approx(log_probs.tolist(), abs=CLOSE)


def test_the_target_fills_its_own_context_whatever_the_source_takes() -> None:
    model = random_pairs_model(PAIRS["learned positions, closing norms"])
    limit = model.spec.context_limit
    params = [SamplingParams(temperature=0, ignore_eos=True), greedy(3)]
    long, short = run(model, [[5] * limit, [6]], params)
    assert (len(long), len(short)) == (limit, 3)
    assert [piece.token_id for piece in long] == reviewed(model, [5] * limit, limit)[0]


@pytest.mark.parametrize("session", [EncoderDecoderSession, FullReview])
def test_reordered_rows_go_on_as_what_they_became(session: type[EncoderDecoderSession]) -> None:
    model = random_pairs_model(PAIRS["2017"])
    rows, ids = torch.tensor([2, 0, 0, 3, 1]), torch.tensor([5, 6, 7, 8, 9])
    one, all_of_them = session(model, [9] * 4), session(model, [9] * 5)
    with torch.no_grad():
        one.prefill(SOURCES)
        one.step(torch.tensor([30, 31, 32, 33]))
        one.reorder(rows)
        all_of_them.prefill([SOURCES[row] for row in rows.tolist()])
        all_of_them.step(rows + 30)
        torch.testing.assert_close(one.step(ids), all_of_them.step(ids), rtol=0, atol=CLOSE)


@pytest.mark.parametrize("name", ["GQA", "window", "latent", "learned positions, tied"])
def test_reordered_rows_of_a_decoder(name: str) -> None:
    model, prompts = random_model(ZOO[name]), [[7, 3, 11, 5, 6], [40], [5, 9]]
    rows, ids = torch.tensor([2, 0, 0, 1]), torch.tensor([5, 6, 7, 8])
    one, all_of_them = DecoderSession(model, [9] * 3), DecoderSession(model, [9] * 4)
    with torch.no_grad():
        one.prefill(prompts)
        one.reorder(rows)
        all_of_them.prefill([prompts[row] for row in rows.tolist()])
        torch.testing.assert_close(one.step(ids), all_of_them.step(ids), rtol=0, atol=CLOSE)
        torch.testing.assert_close(one.step(ids), all_of_them.step(ids), rtol=0, atol=CLOSE)


@every_pair
def test_the_cache_takes_the_bytes_the_spec_counts(spec: EncoderDecoderSpec) -> None:
    model, context = random_pairs_model(spec), 10
    session = EncoderDecoderSession(model, [context] * 2)
    with torch.no_grad():
        session.prefill([[5] * context] * 2)
    kept = sum(tensor.nbytes for tensor in [*session._cache.tensors(), *session._memory.tensors()])
    assert kept == 2 * spec.kv_cache_bytes(context, "float32")
    if "window" not in str(spec.plain()):
        assert spec.kv_cache_bytes(context, "float32") == 2 * context * spec.kv_bytes_per_token("float32")


def test_an_end_token_first_is_an_empty_text() -> None:
    model = random_pairs_model(PAIRS["three matrices, a bias on the logits"])
    assert model.logits_bias is not None
    model.logits_bias[0, 2] = 1e4
    (pieces,) = run(model, [[5, 6]], [greedy(5, ignore_eos=False)])
    assert [(piece.token_id, piece.text, piece.finish_reason) for piece in pieces] == [(2, "", "stop")]


def test_a_forbidden_token_is_never_made() -> None:
    model = random_pairs_model(PAIRS["2017"])
    free = [piece.token_id for piece in run(model, [SOURCES[0]], [greedy(10)])[0]]
    (pieces,) = run(model, [SOURCES[0]], [greedy(10, forbidden_token_ids=(free[0],))])
    assert free[0] not in [piece.token_id for piece in pieces]


def test_a_repetition_penalty_counts_the_target_alone() -> None:
    model = random_pairs_model(PAIRS["2017"])
    (pieces,) = run(model, [list(range(64))[:40]], [greedy(25, repetition_penalty=1e9)])
    made = [model.spec.start_token_id, *(piece.token_id for piece in pieces)]
    assert len(set(made)) == len(made)


@pytest.mark.parametrize(
    ("source", "count", "message"),
    [
        ([], 5, r"prompt 2: the prompt is empty"),
        ([64], 5, r"prompt 2: token 64 is beyond the model's vocabulary of 64"),
        ([1] * 41, 5, r"prompt 2: 41 tokens do not fit into a context of 40"),
        ([1], 41, r"prompt 2: 41 tokens do not fit into a context of 40; at most 40 new ones do"),
    ],
)
def test_what_cannot_be_translated_is_refused(source: list[int], count: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        generate(random_pairs_model(PAIRS["2017"]), TOKENIZER, [[1], source], [greedy(5), greedy(count)])


def recurrent_model(cell: str) -> RecurrentModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "embedding_size": 16, "hidden_size": 24, "num_layers": 2}
    model = RecurrentModel(validate(RecurrentSpec, {"kind": "recurrent", "cell": {"kind": cell}, **sizes})).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
@torch.no_grad()
def test_recurrent_models_go_on_from_their_state(cell: str) -> None:
    """The same loop, ragged batches, each row as if alone, and a state that does not grow."""
    model, params = recurrent_model(cell), [greedy(count) for count in (6, 15, 1, 9)]
    for source, one, pieces in zip(SOURCES, params, run(model, SOURCES, params), strict=True):
        assert one.max_tokens
        known = list(source)
        for _ in range(one.max_tokens):
            known.append(int(model(torch.tensor([known]))[0, -1].argmax()))
        assert [piece.token_id for piece in pieces] == known[len(source) :]


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
@torch.no_grad()
def test_recurrent_rows_can_be_reordered(cell: str) -> None:
    model, rows, ids = recurrent_model(cell), torch.tensor([2, 0, 0, 3, 1]), torch.tensor([5, 6, 7, 8, 9])
    one, all_of_them = RecurrentSession(model, [9] * 4), RecurrentSession(model, [9] * 5)
    one.prefill(SOURCES)
    one.reorder(rows)
    all_of_them.prefill([SOURCES[row] for row in rows.tolist()])
    torch.testing.assert_close(one.step(ids), all_of_them.step(ids), rtol=0, atol=CLOSE)


@pytest.mark.parametrize("field", ["n", "prompt_logprobs"])
def test_what_only_decoders_do_is_refused(field: str) -> None:
    with pytest.raises(UserError, match="prompt 2: n and prompt_logprobs are for decoders"):
        generate(recurrent_model("gru"), TOKENIZER, [[1], [1]], [greedy(3), greedy(3, temperature=1, **{field: 2})])


def test_what_has_no_end_of_its_own_needs_one() -> None:
    with pytest.raises(UserError, match="set max_tokens"):
        generate(recurrent_model("gru"), TOKENIZER, [[1]], [SamplingParams()])
