"""Vectors and scores: each text's own, whatever it is batched with."""

from pathlib import Path

import pytest
import torch

from intaglio import LLM
from intaglio.checkpoints.classifiers import save_classifier
from intaglio.engine.engine import Engine, EngineConfig
from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.models.heads import SequenceClassifier, init_head
from tiny_specs import ZOO, attention, block, decoder
from toy_llms import random_model, toy_tokenizer

TOKENIZER = toy_tokenizer()
NTK = {"scaling": {"kind": "dynamic", "factor": 4.0, "original_max_position_embeddings": 8}}
SPECS = {
    "grouped": ZOO["GQA"],
    "windows": ZOO["dense and banded in turn"],
    "latent": ZOO["one dense, then experts, latent"],
    "dynamic": decoder(block(attention=attention(rope=NTK)), max_position_embeddings=8),
}
PROMPTS = [[7, 3, 11], [40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51], [5], [9, 9, 30, 31, 12, 13]]


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("budget", [4, 512])
@torch.no_grad()
def test_vectors_are_those_of_each_text_alone(name: str, budget: int) -> None:
    model = random_model(SPECS[name])
    engine = Engine(model, TOKENIZER, EngineConfig(max_tokens_per_step=budget, num_blocks=8))
    hidden = [model.hidden_states(torch.tensor([prompt]))[0] for prompt in PROMPTS]
    mean, last = torch.stack([h.mean(dim=0) for h in hidden]), torch.stack([h[-1] for h in hidden])
    torch.testing.assert_close(engine.embed(PROMPTS, normalize=False), mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(engine.embed(PROMPTS, pooling="last", normalize=False), last, rtol=1e-4, atol=1e-4)
    unit = engine.embed(PROMPTS)
    torch.testing.assert_close(unit, mean / mean.norm(dim=-1, keepdim=True), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_scores_are_those_of_each_text_alone(tmp_path: Path) -> None:
    for labels in (1, 3):
        model = SequenceClassifier(random_model(ZOO["GQA"]), labels).eval()
        init_head(model, 0)
        expected = [model(torch.tensor([prompt]))[0].tolist() for prompt in PROMPTS]
        for found in Engine(model, TOKENIZER, EngineConfig(num_blocks=8)).score(PROMPTS), _from_disk(model, tmp_path):
            assert [len(row) for row in found] == [labels] * len(PROMPTS)
            for row, one in zip(found, expected, strict=True):
                assert row == pytest.approx(one, abs=1e-5)


def _from_disk(model: SequenceClassifier, path: Path) -> list[list[float]]:
    save_classifier(model, path / "head", TOKENIZER)
    return LLM(path / "head").engine.score(PROMPTS)


def test_what_a_model_cannot_do_is_refused() -> None:
    config = EngineConfig(num_blocks=8)
    plain = Engine(random_model(ZOO["GQA"]), TOKENIZER, config)
    headed = Engine(SequenceClassifier(random_model(ZOO["GQA"]), 1), TOKENIZER, config)
    with pytest.raises(UserError, match="no head"):
        plain.score(PROMPTS)
    with pytest.raises(UserError, match="makes none"):
        headed.add("0", [1], SamplingParams())
    assert headed.embed(PROMPTS).shape == (4, 32)
    for prompts, message in (([[1], []], "prompt 2: the prompt is empty"), ([[1] * 33], "33 tokens do not fit")):
        with pytest.raises(UserError, match=message):
            headed.score(prompts)
        with pytest.raises(UserError, match=message):
            plain.embed(prompts)
