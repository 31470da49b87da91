"""What a model answers, and how far it is from another: against the whole softmax, and where both share weights."""

from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch

from intaglio.adapters.attach import attach
from intaglio.data.preferences import Prompt
from intaglio.models.decoder import Decoder
from intaglio.specs.adapter import LoRASpec
from intaglio.training.measuring.interview import along, divergences, interview, shown_prompt
from intaglio.training.reference import AdapterOff
from intaglio.training.rl.rewards import FunctionReward, Rewards
from intaglio.training.rollout import Drawing
from tiny_specs import block, decoder
from toy_llms import PADDED_VOCAB, random_model, toy_tokenizer

PROMPTS = [Prompt("a", "the sea"), Prompt("b", "rain over every hill and field"), Prompt("c", "a")]
IDS = [[5, 6, 7], [8], [9, 10]]
ANSWERS = [[11, 12], [13, 14, 15, 16], [17]]


def toy(seed: int) -> Decoder:
    layer = block(attention={"num_heads": 4, "num_kv_heads": 2, "rope": {}})
    return random_model(decoder(layer, vocab_size=PADDED_VOCAB, max_position_embeddings=64), seed)


@torch.no_grad()
def by_hand(model: Decoder, other: Decoder, asked: list[list[int]] = IDS) -> list[float]:
    found = []
    for prompt, answer in zip(asked, ANSWERS, strict=True):
        ids = torch.tensor([prompt + answer])
        ours, theirs = (one(ids)[0, len(prompt) - 1 : -1].log_softmax(-1) for one in (model, other))
        found.append(float((ours.exp() * (ours - theirs)).sum()))
    return found


def test_the_divergence_is_that_of_the_whole_softmax_at_every_token_of_the_answer() -> None:
    model, other = toy(0), toy(1)
    for batch in (1, 2, 64):
        found = along(model, lambda policy: nullcontext(other), IDS, ANSWERS, batch)
        assert found == pytest.approx(by_hand(model, other), rel=1e-4)
    assert min(by_hand(model, other)) > 0.01


def test_answers_to_one_prompt_do_not_see_each_other() -> None:
    model, other = toy(0), toy(1)
    asked = [IDS[0], IDS[0], IDS[1]]
    found = along(model, lambda policy: nullcontext(other), asked, ANSWERS)
    assert found == pytest.approx(by_hand(model, other, asked), rel=1e-4)


def test_blocks_of_tokens_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = toy(0), toy(1)
    monkeypatch.setattr("intaglio.training.measuring.interview._BLOCK", 2 * PADDED_VOCAB)
    assert along(model, lambda policy: nullcontext(other), IDS, ANSWERS) == pytest.approx(
        by_hand(model, other), rel=1e-4
    )


def test_a_model_is_no_way_from_itself_and_trains_on() -> None:
    model = toy(0).train()
    assert along(model, lambda policy: nullcontext(policy), IDS, ANSWERS) == [0.0, 0.0, 0.0]
    assert model.training


def test_an_adapter_that_is_switched_off_is_the_model_below_it() -> None:
    base = toy(0)
    model = deepcopy(base)
    attach(model, LoRASpec(r=2), seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)
    apart = along(model, lambda policy: nullcontext(base), IDS, ANSWERS)
    assert min(apart) > 1e-3
    assert along(model, AdapterOff().of, IDS, ANSWERS) == pytest.approx(apart, rel=1e-4)


def test_answers_are_greedy_and_judged() -> None:
    tokenizer = toy_tokenizer()
    lengths = FunctionReward("letters", lambda prompts, completions: [float(len(p)) for p in prompts])
    found = interview(toy(0), tokenizer, PROMPTS, Rewards([lengths], [1.0]), Drawing(5, temperature=0, at_once=2))
    again = interview(toy(0), tokenizer, PROMPTS, None, Drawing(5, temperature=0))
    assert found.texts == again.texts
    assert [len(answer.ids) for answer in found.answers] == found.lengths
    assert max(found.lengths) <= 5
    assert found.scores == {"letters": [7.0, 30.0, 1.0]}
    assert again.scores == {}


def test_answers_are_drawn_where_there_is_a_temperature() -> None:
    tokenizer = toy_tokenizer()
    one, two, other = (interview(toy(0), tokenizer, PROMPTS, None, Drawing(5), seed).texts for seed in (0, 0, 9))
    assert one == two != other


def test_drawn_answers_give_a_divergence_each_and_the_seed_decides_it() -> None:
    model, other, tokenizer = toy(0), toy(1), toy_tokenizer()
    one, two, three = (
        divergences(model, lambda policy: nullcontext(other), tokenizer, PROMPTS, 4, 2, seed) for seed in (0, 0, 1)
    )
    assert one == two != three
    assert len(one) == 3


def test_prompts_are_shown_as_people_read_them() -> None:
    said = ({"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"})
    assert shown_prompt(Prompt("a", said)) == "user: hello\nassistant: yes"
    assert shown_prompt(PROMPTS[0]) == "the sea"
