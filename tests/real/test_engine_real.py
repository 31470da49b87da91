"""The engine on SmolLM2: its log-probabilities are the training forward's, and a deterministic answer is alone's."""

from pathlib import Path

import pytest
import torch

from intaglio import LLM, SamplingParams
from intaglio.engine.engine import Engine, EngineConfig, Output
from intaglio.parts.context import Packed

pytestmark = pytest.mark.real

TEXTS = ["The history of the printing press begins", "def add(a, b):", "Once upon a time, in a small town by the sea,"]


@pytest.fixture(scope="module")
def llm(smollm2_dir: Path) -> LLM:
    torch.set_num_threads(1)
    return LLM(smollm2_dir, dtype="float32")


def run(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> list[list[Output]]:
    for row, prompt in enumerate(prompts):
        engine.add(str(row), prompt, params)
    rows: list[list[Output]] = [[] for _ in prompts]
    while engine.has_work:
        for output in engine.step():
            rows[int(output.request_id)].append(output)
    return rows


def log_probs(row: list[Output]) -> list[float]:
    told = [*(row[0].prompt_logprobs or []), *(one for output in row for one in output.logprobs or [])]
    return [one.log_prob for one in told if one]


def test_log_probabilities_are_those_of_the_training_forward(llm: LLM) -> None:
    """In fp32 within 1e-4 of documents packed as in training, while three texts run in chunks of a small budget."""
    prompts = llm.tokenizer.encode_batch(TEXTS)
    engine = Engine(llm.model, llm.tokenizer, EngineConfig(num_blocks=64, max_tokens_per_step=7))
    rows = run(engine, prompts, SamplingParams(seed=0, max_tokens=8, ignore_eos=True, logprobs=0, prompt_logprobs=0))
    texts = [[*p, *(token for out in row for token in out.token_ids)] for p, row in zip(prompts, rows, strict=True)]
    lengths = [len(text) for text in texts]
    with torch.no_grad():
        places = torch.cat([torch.arange(length) for length in lengths])[None]
        logits = llm.model(torch.tensor([[token for text in texts for token in text]]), places, Packed(lengths))[
            0
        ].split(lengths)
    for text, told, row in zip(texts, logits, rows, strict=True):
        wanted = told[:-1].log_softmax(dim=-1).gather(-1, torch.tensor(text[1:])[:, None])[:, 0]
        assert log_probs(row) == pytest.approx(wanted.tolist(), abs=1e-4)


def test_a_deterministic_answer_does_not_depend_on_its_batch_mates(smollm2_dir: Path) -> None:
    """Case 14 in bf16, bit for bit, log-probabilities included."""
    llm = LLM(smollm2_dir, dtype="bfloat16")
    prompts = llm.tokenizer.encode_batch(TEXTS)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0)
    config = EngineConfig(num_blocks=64, deterministic=True, max_tokens_per_step=9)
    alone = run(Engine(llm.model, llm.tokenizer, config), prompts[:1], params)[0]
    crowd = run(Engine(llm.model, llm.tokenizer, config), [*prompts[1:], *prompts], params)
    assert [out.token_ids for out in crowd[2]] == [out.token_ids for out in alone]
    assert log_probs(crowd[2]) == log_probs(alone)
