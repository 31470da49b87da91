"""Gemma 3 270M: windows and full layers in turn, on real weights, against transformers on the same directory."""

from pathlib import Path

import pytest
import torch

from intaglio import LLM, SamplingParams
from reference import Reference

pytestmark = [pytest.mark.real, pytest.mark.prove]

NEW = 40
SHORT = "The three primary colours are"
LONG = (
    " ".join(
        f"In the year {1000 + 7 * i}, the town had {31 * i % 97} bakers and {13 * i % 41} smiths." for i in range(32)
    )
    + " In the year"
)


@pytest.fixture(scope="module")
def llm(gemma3_dir: Path) -> LLM:
    torch.set_num_threads(1)
    return LLM(gemma3_dir, dtype="float32")


@pytest.fixture(scope="module")
def reference(gemma3_dir: Path) -> Reference:
    return Reference(gemma3_dir)


@pytest.mark.parametrize("prompt", [SHORT, LONG], ids=["short", "longer than the window"])
def test_greedy_text_is_that_of_transformers(llm: LLM, reference: Reference, prompt: str) -> None:
    ids = llm.tokenizer.encode(prompt)
    assert ids == reference.tokenizer(prompt)["input_ids"]
    (done,) = llm.complete([ids], SamplingParams(temperature=0, max_tokens=NEW))
    theirs = reference.continued(ids, NEW)
    assert done.token_ids == theirs
    assert done.text == reference.tokenizer.decode(theirs, skip_special_tokens=True)


def test_logits_are_those_of_transformers_beyond_the_window(llm: LLM, reference: Reference) -> None:
    ids = llm.tokenizer.encode(LONG)
    windows = {getattr(block.attention, "window", None) for block in llm.model.spec.blocks}
    assert windows == {512, None}
    assert len(ids) > 512
    with torch.inference_mode():
        ours = llm.model(torch.tensor([ids]))[0]
    theirs = reference.logits(ids)
    assert theirs.abs().max() > 10
    assert (ours - theirs).abs().max() <= 1e-3


def test_a_ragged_batch_across_the_window_says_what_each_prompt_says_alone(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=12)
    prompts = llm.tokenizer.encode_batch([SHORT, LONG])
    together = llm.complete(prompts, params)
    assert [done.token_ids for done in together] == [llm.complete([ids], params)[0].token_ids for ids in prompts]
