"""Text from the weights as they are, on the engine, and training none the wiser."""

import pytest
import torch

from intaglio.training.rollout import answer_prompts, continue_prompts
from tiny_specs import ZOO, decoder
from toy_llms import PADDED_VOCAB, random_model, toy_tokenizer

TOKENIZER = toy_tokenizer()
PROMPTS = [[7, 3, 11], [40, 41, 42, 43, 44, 45], [5], [9, 9, 30, 31, 12, 13], [7, 3, 11]]


@pytest.mark.parametrize("name", ["GQA", "dense and banded in turn", "experts"])
def test_answers_do_not_depend_on_how_many_are_made_at_once(name: str) -> None:
    model = random_model(ZOO[name])
    answers = answer_prompts(model, TOKENIZER, PROMPTS, 12, batch=2)
    assert answers == [answer_prompts(model, TOKENIZER, [prompt], 12, batch=1)[0] for prompt in PROMPTS]
    assert answers[0] == answers[4] != answers[1]


def test_training_goes_on_as_if_nothing_had_been() -> None:
    model = random_model(decoder(vocab_size=PADDED_VOCAB)).train()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = continue_prompts(model, TOKENIZER, ["hello", "hello"], 10, seed=1)
    assert torch.equal(torch.rand(3), expected)
    assert model.training
    assert all(weight.requires_grad and not weight.is_inference() for weight in model.parameters())
    assert first[0] != first[1]
    assert continue_prompts(model, TOKENIZER, ["hello", "hello"], 10, seed=1) == first
    model(torch.tensor([[1, 2, 3]])).sum().backward()


def test_new_weights_say_new_things() -> None:
    """Nothing of the old weights' keys and values is left."""
    model = random_model(ZOO["GQA"])
    before = answer_prompts(model, TOKENIZER, PROMPTS, 12, batch=5)
    model.load_state_dict(random_model(ZOO["GQA"], seed=1).state_dict())
    after = answer_prompts(model, TOKENIZER, PROMPTS, 12, batch=5)
    assert after != before
    assert after == answer_prompts(random_model(ZOO["GQA"], seed=1), TOKENIZER, PROMPTS, 12, batch=5)
