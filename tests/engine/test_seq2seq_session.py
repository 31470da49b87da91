"""Generation by recurrent encoder-decoders: the same loop and the same beams, alone and in ragged batches."""

from collections.abc import Sequence

import pytest
import torch

from intaglio.engine.beam import beam_search
from intaglio.engine.generate import Piece, generate
from intaglio.engine.sampling_params import SamplingParams
from intaglio.engine.session import Seq2SeqSession
from intaglio.errors import UserError
from intaglio.models.seq2seq import Seq2Seq
from intaglio.parts.recurrent import Cell
from tiny_seq2seq import SOURCES, ZOO, random_seq2seq
from toy_llms import toy_tokenizer

END = 2
NAMES = ["lstm, no attention", "gru, reset before, additive, after", "tanh, dot, before", "both ways, lstm"]

every_name = pytest.mark.parametrize("name", NAMES)


def greedy(count: int, **fields: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": count, "ignore_eos": True, **fields})


def run(model: Seq2Seq, sources: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[list[Piece]]:
    """The pieces of each row."""
    rows: list[list[Piece]] = [[] for _ in sources]
    for piece in generate(model, toy_tokenizer(), sources, params):
        rows[piece.row].append(piece)
    return rows


@torch.no_grad()
def forced(model: Seq2Seq, source: Sequence[int], written: Sequence[int]) -> torch.Tensor:
    """Log-probabilities of every next token, (T, V), by one teacher-forced forward."""
    return model(torch.tensor([source]), torch.tensor([[1, *written]]))[0].log_softmax(dim=-1)


def worth(model: Seq2Seq, source: Sequence[int], ids: Sequence[int], penalty: float = 1.0) -> float:
    log_probs = forced(model, source, ids[:-1]).gather(-1, torch.tensor(ids)[:, None])
    return log_probs.sum().item() / len(ids) ** penalty


@every_name
def test_greedy_in_a_ragged_batch_is_what_whole_forwards_choose(name: str) -> None:
    model = random_seq2seq(ZOO[name])
    counts = [6, 15, 1, 9]
    rows = run(model, SOURCES, [greedy(count) for count in counts])
    for source, count, pieces in zip(SOURCES, counts, rows, strict=True):
        written = [piece.token_id for piece in pieces]
        log_probs = forced(model, source, written[:-1])
        assert len(written) == count
        assert written == log_probs.argmax(dim=-1).tolist()
        assert [piece.log_prob for piece in pieces] == pytest.approx(log_probs.amax(dim=-1).tolist(), abs=1e-5)


@every_name
def test_one_beam_is_greedy(name: str) -> None:
    model = random_seq2seq(ZOO[name])
    found = beam_search(Seq2SeqSession(model, [8] * 4), SOURCES, greedy(8), [], [8] * 4)
    rows = run(model, SOURCES, [greedy(8)] * 4)
    assert [best[0].ids for best in found] == [[piece.token_id for piece in pieces] for pieces in rows]


@every_name
def test_beams_in_a_ragged_batch_are_each_alone(name: str) -> None:
    model, most = random_seq2seq(ZOO[name]), [9, 5, 12, 7]
    params = SamplingParams(temperature=0, num_beams=4)
    together = beam_search(Seq2SeqSession(model, most), SOURCES, params, [END], most)
    for source, length, found in zip(SOURCES, most, together, strict=True):
        (alone,) = beam_search(Seq2SeqSession(model, [length]), [source], params, [END], [length])
        assert [one.ids for one in found] == [one.ids for one in alone]
        assert [one.score for one in found] == pytest.approx([one.score for one in alone], abs=1e-5)
        for one in found:  # what the beams believe is what a whole forward says
            assert one.score == pytest.approx(worth(model, source, one.ids), abs=1e-5)


def test_beams_find_a_likelier_text_than_greedy() -> None:
    """Two tokens: the likeliest first one leads where nothing is likely, the next one where the second is certain."""
    model = random_seq2seq(ZOO["relu, no attention"]).float()
    trap(model)
    (one,) = beam_search(Seq2SeqSession(model, [2]), [[5]], greedy(2), [END], [2])
    params = SamplingParams(temperature=0, num_beams=3, length_penalty=0.0)
    (several,) = beam_search(Seq2SeqSession(model, [2]), [[5]], params, [END], [2])
    assert one[0].ids[0] == 3
    assert several[0].ids == [4, END]
    assert several[0].score > worth(model, [5], one[0].ids, penalty=0.0) + 0.5
    assert several[0].score == pytest.approx(worth(model, [5], several[0].ids, penalty=0.0), abs=1e-5)


@torch.no_grad()
def trap(model: Seq2Seq) -> None:
    """The state is the last token: after 1 come 3 and 4, nearly alike; only after 4 is the end clear."""
    for parameter in model.parameters():
        parameter.zero_()
    logits = model.lm_head.weight  # (V, H)
    for feature, token in enumerate((1, 3, 4)):
        model.embed_target.weight[token, feature] = 1.0
        for cell in (module for module in model.decoder.modules() if isinstance(module, Cell)):
            cell.input_weight[feature, feature] = 1.0
    logits[3, 0], logits[4, 0], logits[END, 2] = 10.0, 9.8, 10.0


@every_name
def test_reordered_rows_go_on_as_what_they_became(name: str) -> None:
    model = random_seq2seq(ZOO[name])
    rows, ids = torch.tensor([2, 0, 0, 3, 1]), torch.tensor([5, 6, 7, 8, 9])
    one, all_of_them = Seq2SeqSession(model, [9] * 4), Seq2SeqSession(model, [9] * 5)
    with torch.no_grad():
        one.prefill(SOURCES)
        one.step(torch.tensor([3, 4, 5, 6]))
        one.reorder(rows)
        all_of_them.prefill([SOURCES[row] for row in rows.tolist()])
        all_of_them.step(rows + 3)
        torch.testing.assert_close(one.step(ids), all_of_them.step(ids), rtol=0, atol=1e-10)


def test_an_end_token_first_is_an_empty_text() -> None:
    model = random_seq2seq(ZOO["lstm, additive, after"])
    with torch.no_grad():
        model.lm_head.weight.zero_()  # all alike, and the end above them
        model.lm_head.weight[END] = torch.where(first_features(model) > 0, 1e4, -1e4)
    (pieces,) = run(model, [[5, 6]], [greedy(5, ignore_eos=False)])
    assert [(piece.token_id, piece.text, piece.finish_reason) for piece in pieces] == [(END, "", "stop")]
    (found,) = beam_search(Seq2SeqSession(model, [5]), [[5, 6]], greedy(5), [END], [5])
    assert found[0].ids == [END]


def first_features(model: Seq2Seq) -> torch.Tensor:
    """What the output matrix reads at the first step, (F,)."""
    return model.hidden_states(torch.tensor([[1]]), model.encode(torch.tensor([[5, 6]])))[0, 0]


@pytest.mark.parametrize(
    ("source", "fields", "message"),
    [
        ([], {"max_tokens": 5}, "prompt 1: the prompt is empty"),
        ([13], {"max_tokens": 5}, "prompt 1: token 13 is beyond the model's vocabulary of 13"),
        ([3], {}, "prompt 1: this model would never end; set max_tokens"),
    ],
)
def test_what_cannot_be_answered_is_refused(source: list[int], fields: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        generate(random_seq2seq(ZOO["both ways"]), toy_tokenizer(), [source], [SamplingParams(**fields)])
