"""SmolLM2-135M-Instruct: real weights, our code, and transformers on the same directory as the judge."""

from pathlib import Path

import pytest
import torch

from intaglio import LLM, SamplingParams
from intaglio.text.chat import render_chat
from reference import Reference

pytestmark = pytest.mark.real

PLAIN = "The history of the printing press begins"
SYSTEM = {"role": "system", "content": "You answer in one word."}
FRANCE = {"role": "user", "content": "Name the capital of France."}
PARIS = {"role": "assistant", "content": "Paris."}
RIVER = {"role": "user", "content": "Which river flows through it?  \n"}
SEINE = {"role": "assistant", "content": "The Seine — la Seine, 塞纳河."}
CONVERSATIONS = {
    "one question": [FRANCE],
    "a system message": [SYSTEM, FRANCE],
    "two turns": [FRANCE, PARIS, RIVER],
    "two turns under a system message": [SYSTEM, FRANCE, PARIS, RIVER, SEINE],
}
NEW = 40


@pytest.fixture(scope="module")
def llm(smollm2_dir: Path) -> LLM:
    torch.set_num_threads(1)
    return LLM(smollm2_dir, dtype="float32")


@pytest.fixture(scope="module")
def reference(smollm2_dir: Path) -> Reference:
    return Reference(smollm2_dir)


def greedy(count: int = NEW) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count)


def chat_ids(llm: LLM) -> list[int]:
    return render_chat(llm.tokenizer, CONVERSATIONS["two turns"], add_generation_prompt=True).ids


def test_logits_are_those_of_transformers(llm: LLM, reference: Reference) -> None:
    ids = chat_ids(llm)
    with torch.inference_mode():
        ours = llm.model(torch.tensor([ids]))[0]
    theirs = reference.logits(ids)
    assert theirs.abs().max() > 10
    assert (ours - theirs).abs().max() <= 1e-3


@pytest.mark.parametrize("kind", ["plain", "chat"])
def test_greedy_text_is_that_of_transformers(llm: LLM, reference: Reference, kind: str) -> None:
    ids = llm.tokenizer.encode(PLAIN) if kind == "plain" else chat_ids(llm)
    (done,) = llm.complete([ids], greedy())
    theirs = reference.continued(ids, NEW)
    assert done.token_ids == theirs
    assert done.text == reference.tokenizer.decode(theirs, skip_special_tokens=True)


def test_plain_text_has_the_ids_of_transformers(llm: LLM, reference: Reference) -> None:
    for text in (PLAIN, "  def f(x):\n\treturn x**2  # 12345", "Zażółć gęślą jaźń 🙂 你好", "<|im_start|>user\n"):
        assert llm.tokenizer.encode(text) == reference.tokenizer(text)["input_ids"]


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("ask", [False, True])
def test_a_chat_is_rendered_as_by_transformers(llm: LLM, reference: Reference, name: str, ask: bool) -> None:
    ours = render_chat(llm.tokenizer, CONVERSATIONS[name], add_generation_prompt=ask)
    text, ids = reference.rendered(CONVERSATIONS[name], add_generation_prompt=ask)
    assert ours.text == text
    assert ours.ids == ids
    assert ours.text.startswith("<|im_start|>system\n")  # the template adds its own where we give none


def test_the_mask_covers_what_the_assistant_wrote_and_its_end_of_turn(llm: LLM) -> None:
    rendered = render_chat(llm.tokenizer, CONVERSATIONS["two turns under a system message"])
    written: list[list[int]] = [[]]
    for token, mine in zip(rendered.ids, rendered.assistant_mask, strict=True):
        if mine:
            written[-1].append(token)
        elif written[-1]:
            written.append([])
    texts = [llm.tokenizer.decode(ids, skip_special_tokens=False) for ids in written if ids]
    assert texts == [f"{message['content']}<|im_end|>" for message in (PARIS, SEINE)]


def test_a_ragged_batch_says_what_each_prompt_says_alone(llm: LLM) -> None:
    prompts = [chat_ids(llm), llm.tokenizer.encode("2 + 2 ="), llm.tokenizer.encode(PLAIN)]
    together = llm.complete(prompts, greedy(16))
    for prompt, done in zip(prompts, together, strict=True):
        (alone,) = llm.complete([prompt], greedy(16))
        assert done.token_ids == alone.token_ids
        assert done.log_probs == pytest.approx(alone.log_probs, abs=1e-3)


def test_the_capital_of_france(smollm2_dir: Path) -> None:
    llm = LLM(smollm2_dir)  # as it is stored: what a newcomer runs
    assert next(llm.model.parameters()).dtype == torch.bfloat16
    answer = "".join(llm.chat([FRANCE], greedy()))
    assert "Paris" in answer
    assert "<|" not in answer
