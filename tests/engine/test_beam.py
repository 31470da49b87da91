"""Beam search: the best of everything where it can hold everything, and each of its rules in numbers."""

import itertools
from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from intaglio.engine.beam import beam_search
from intaglio.engine.generate import generate
from intaglio.engine.sampling_params import SamplingParams
from intaglio.engine.session import DecoderSession, EncoderDecoderSession
from intaglio.errors import UserError
from tiny_pairs import PAIRS, SOURCES, pairs_spec, random_pairs_model
from tiny_specs import ZOO
from toy_llms import random_model, toy_tokenizer

END = 2


def beams(count: int, **fields: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "num_beams": count, **fields})


class Table:
    """A session that looks the next token's probabilities up by the last one."""

    continues: ClassVar[bool] = False

    def __init__(self, model: Tensor, max_tokens: Sequence[int]) -> None:
        self._table = model  # (V, V)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        return self._table[[prompt[-1] for prompt in prompts]].log()

    def step(self, ids: Tensor) -> Tensor:
        return self._table[ids].log()

    def reorder(self, rows: Tensor) -> None:
        pass


# 0 begins; 2 ends. Greedy takes 1 (0.6) and then ends with 0.4; by way of 3 the end is certain.
GREEDY_TRAP = torch.tensor(
    [[0.0, 0.6, 0.05, 0.35], [0.0, 0.3, 0.4, 0.3], [0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 1.0, 0.0]]
)


def test_two_beams_see_what_greedy_does_not() -> None:
    (one,) = beam_search(Table(GREEDY_TRAP, [9]), [[0]], beams(1), [END], [9])
    (two,) = beam_search(Table(GREEDY_TRAP, [9]), [[0]], beams(2, length_penalty=0.0), [END], [9])
    assert one[0].ids == [1, END]
    assert two[0].ids == [3, END]
    assert two[0].score == pytest.approx(torch.tensor(0.35).log().item())
    assert two[0].log_probs == pytest.approx([torch.tensor(0.35).log().item(), 0.0], abs=1e-6)


@pytest.mark.parametrize(("penalty", "ids"), [(0.0, [END]), (4.0, [1, 1, 1, 1])])
def test_the_length_penalty_weighs_length(penalty: float, ids: list[int]) -> None:
    """Ending at once has 0.5; each further token costs a bit, and all are shared out over the length."""
    table = torch.tensor([[0.0, 0.5, 0.5], [0.0, 0.6, 0.4], [0.0, 0.0, 1.0]])
    (found,) = beam_search(Table(table, [4]), [[0]], beams(3, length_penalty=penalty), [END], [4])
    assert found[0].ids == ids
    assert found == sorted(found, key=lambda one: -one.score)
    for one in found:
        assert one.score == pytest.approx(sum(one.log_probs) / len(one.ids) ** penalty)


def test_with_room_for_everything_it_finds_the_best_there_is() -> None:
    model = random_pairs_model(pairs_spec(vocab_size=5), std=0.6)
    with torch.no_grad():
        (found,) = beam_search(EncoderDecoderSession(model, [3]), [[3, 4, 2]], beams(64), [END], [3])
        best = max(_every_text(), key=lambda ids: _worth(model, [3, 4, 2], ids))
    assert found[0].ids == best
    assert found[0].score == pytest.approx(_worth(model, [3, 4, 2], best), abs=1e-5)


def _every_text() -> list[list[int]]:
    """Texts of up to three tokens, shorter ones ended."""
    others = [0, 1, 3, 4]
    whole = [[*text, END] for n in range(3) for text in itertools.product(others, repeat=n)]
    return whole + [list(text) for text in itertools.product(others, repeat=3)]


def _worth(model: object, source: list[int], ids: list[int]) -> float:
    logits = model(torch.tensor([source]), torch.tensor([[1, *ids[:-1]]]))[0].log_softmax(dim=-1)  # type: ignore[operator]
    return logits.gather(-1, torch.tensor(ids)[:, None]).sum().item() / len(ids)


@pytest.mark.parametrize("count", [2, 4])
def test_a_batch_of_ragged_sources_is_each_alone(count: int) -> None:
    model = random_pairs_model(PAIRS["three matrices, a bias on the logits"])
    assert model.logits_bias is not None
    model.logits_bias[0, END] += 4
    most = [12, 5, 20, 9]
    together = beam_search(EncoderDecoderSession(model, most), SOURCES, beams(count), [END], most)
    for source, length, found in zip(SOURCES, most, together, strict=True):
        (alone,) = beam_search(EncoderDecoderSession(model, [length]), [source], beams(count), [END], [length])
        assert [one.ids for one in found] == [one.ids for one in alone]
        assert [one.score for one in found] == pytest.approx([one.score for one in alone], abs=1e-4)
        assert all(len(one.ids) == length or one.ids[-1] == END for one in found)


@pytest.mark.parametrize("name", ["GQA", "learned positions, tied"])
def test_one_beam_of_a_decoder_is_greedy(name: str) -> None:
    model, prompts = random_model(ZOO[name]), [[7, 3, 11, 5], [40]]
    found = beam_search(DecoderSession(model, [8, 8]), prompts, beams(1), [], [8, 8])
    params = [SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)] * 2
    greedy: list[list[int]] = [[], []]
    for piece in generate(model, toy_tokenizer(), prompts, params):
        greedy[piece.row].append(piece.token_id)
    assert [one[0].ids for one in found] == greedy


@pytest.mark.parametrize("name", ["GQA", "dense and banded in turn", "latent", "learned positions, tied"])
@torch.no_grad()
def test_beams_of_a_decoder_are_worth_what_the_plain_forward_says(name: str) -> None:
    """Over several blocks, which beams share until they part; rows that end first change nothing for the others."""
    model, prompts, most = random_model(ZOO[name]), [[7, 3, 11, 5, 20, 21, 22], [40]], [25, 19]
    found = beam_search(DecoderSession(model, most), prompts, beams(3), [], most)
    for prompt, length, texts in zip(prompts, most, found, strict=True):
        assert [len(text.ids) for text in texts] == [length] * 3
        assert len({tuple(text.ids) for text in texts}) == 3
        for text in texts:
            told = model(torch.tensor([[*prompt, *text.ids[:-1]]]))[0, len(prompt) - 1 :].log_softmax(dim=-1)
            worth = told.gather(-1, torch.tensor(text.ids)[:, None])[:, 0]
            assert text.log_probs == pytest.approx(worth.tolist(), abs=1e-3)


def test_a_forbidden_token_is_in_no_text() -> None:
    (found,) = beam_search(Table(GREEDY_TRAP, [9]), [[0]], beams(2, forbidden_token_ids=(3,)), [END], [9])
    assert all(3 not in one.ids for one in found)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_beams": 2}, "temperature must be 0"),
        ({"num_beams": 2, "temperature": 0, "top_k": 5}, "top_k has no effect with num_beams 2"),
        ({"num_beams": 2, "temperature": 0, "stop": ("a",)}, "stop has no effect"),
        ({"length_penalty": 2.0}, "length_penalty has no effect with num_beams 1"),
        ({"num_beams": 0}, "num_beams"),
    ],
)
def test_what_would_do_nothing_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SamplingParams(**fields)


def test_beams_make_no_pieces() -> None:
    with pytest.raises(UserError, match="beam search makes no pieces"):
        generate(random_model(ZOO["GQA"]), toy_tokenizer(), [[1]], [beams(2, max_tokens=3)])
