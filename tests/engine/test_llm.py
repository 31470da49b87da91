"""`LLM`: text in, text out, with the tokenizer and the chat template of the model's own directory."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from intaglio import LLM, SamplingParams
from intaglio.engine.llm import Timing
from intaglio.errors import UserError
from intaglio.text.chat import render_chat
from toy_gguf import write_llama
from toy_llms import ANSWER, PADDED_VOCAB

ASK = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def toy(toy_dir: Path) -> LLM:
    return LLM(toy_dir)


@pytest.fixture(scope="module")
def parrot(parrot_dir: Path) -> LLM:
    return LLM(parrot_dir)


def greedy(**fields: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 40, **fields})


def test_one_prompt_is_continued_to_the_end_token(parrot: LLM) -> None:
    (done,) = parrot.generate("QUI", greedy())
    assert done.text == ANSWER.removeprefix("QUI")
    assert done.finish_reason == "stop"
    assert done.token_ids == parrot.tokenizer.encode(done.text + "<|im_end|>")
    assert done.prompt_tokens == 3
    assert done.log_probs == pytest.approx([0.0] * len(done.token_ids), abs=1e-3)


def test_a_chat_streams_the_answer_without_half_characters(parrot: LLM) -> None:
    pieces = list(parrot.chat(ASK, greedy()))
    assert "".join(pieces) == ANSWER
    assert "" in pieces  # the first half of the last letter, and the end of the turn
    assert "\ufffd" not in "".join(pieces)


def test_a_chat_is_the_rendered_prompt_continued(toy: LLM) -> None:
    prompt = render_chat(toy.tokenizer, ASK, add_generation_prompt=True)
    (done,) = toy.complete([prompt.ids], greedy())
    assert "".join(toy.chat(ASK, greedy())) == done.text


@pytest.mark.parametrize("stop", ["CK BR", "K", "K B", "NONE", "OWNé"])
def test_a_stop_string_may_lie_across_tokens(parrot: LLM, stop: str) -> None:
    (done,) = parrot.generate("QU", greedy(stop=("nowhere", stop)))
    rest = ANSWER.removeprefix("QU")
    assert done.text == rest.split(stop)[0]
    assert done.finish_reason == "stop"
    shown = "".join(piece.text for piece in parrot.stream([parrot.tokenizer.encode("QU")], [greedy(stop=(stop,))]))
    assert shown == done.text


def test_text_held_back_for_a_stop_string_is_shown_at_the_end(parrot: LLM) -> None:
    (done,) = parrot.generate("QU", greedy(stop=("BROWNéx",)))
    assert done.text == ANSWER.removeprefix("QU")
    (cut,) = parrot.generate("QU", greedy(stop=("BROWNéx",), max_tokens=6))
    assert (cut.text, cut.finish_reason) == ("ICK BR", "length")


def test_texts_of_a_batch_are_texts_of_each(toy: LLM) -> None:
    prompts = ["hello", "the user says hello to the assistant", "42"]
    together = toy.generate(prompts, greedy())
    assert [done.text for done in together] == [toy.generate(prompt, greedy())[0].text for prompt in prompts]
    assert [done.prompt_tokens for done in together] == [len(toy.tokenizer.encode(prompt)) for prompt in prompts]


def test_each_row_may_have_its_own_parameters(toy: LLM) -> None:
    first, second = toy.generate(["hello", "hello"], [greedy(max_tokens=3), greedy(max_tokens=9, ignore_eos=True)])
    assert len(first.token_ids) <= 3
    assert len(second.token_ids) == 9
    with pytest.raises(ValueError, match="zip"):
        toy.generate(["hello", "hello"], [greedy()])


def test_several_choices_are_several_completions(toy: LLM) -> None:
    params = SamplingParams(n=3, seed=1, max_tokens=9, ignore_eos=True)
    done = toy.generate(["hello", "42"], params)
    assert len({one.text for one in done}) == 6
    assert [one.prompt_tokens for one in done] == [
        len(toy.tokenizer.encode(text)) for text in ("hello", "42") for _ in "123"
    ]
    again = toy.generate("hello", params)
    assert [one.token_ids for one in again] == [one.token_ids for one in done[:3]]


def test_log_probabilities_of_likelier_tokens_and_of_the_prompt(toy: LLM) -> None:
    prompt = toy.tokenizer.encode("hello there")
    (done,) = toy.generate("hello there", greedy(max_tokens=4, logprobs=2, prompt_logprobs=1))
    assert done.logprobs is not None
    assert [one.top[0] for one in done.logprobs] == list(zip(done.token_ids, done.log_probs, strict=True))
    assert [len(one.top) for one in done.logprobs] == [2] * 4
    assert done.prompt_logprobs is not None
    assert [one and one.token_id for one in done.prompt_logprobs] == [None, *prompt[1:]]
    assert toy.generate("hello there", greedy(max_tokens=4))[0].prompt_logprobs is None


def test_a_conversation_that_goes_on_is_read_from_where_it_ended(toy: LLM) -> None:
    before = toy.engine.stats()
    asked = [{"role": "user", "content": "the user says hello to the assistant and the assistant says hi there"}]
    answer = "".join(toy.chat(asked, greedy(max_tokens=5)))
    more = [*asked, {"role": "assistant", "content": answer}, {"role": "user", "content": "thanks"}]
    list(toy.chat(more, greedy(max_tokens=5)))
    assert toy.engine.stats().prefix_hits - before.prefix_hits >= 16
    assert toy.engine.stats().running == 0


def test_log_probabilities_are_those_of_the_uncached_forward(toy: LLM) -> None:
    prompt = toy.tokenizer.encode("hello there")
    params = SamplingParams(temperature=1.3, seed=3, max_tokens=30, ignore_eos=True)
    (done,) = toy.complete([prompt], params)
    with torch.no_grad():
        logits = toy.model(torch.tensor([prompt + done.token_ids]))[0, len(prompt) - 1 : -1]
    wanted = logits.log_softmax(-1).gather(-1, torch.tensor(done.token_ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(done.log_probs), wanted, rtol=1e-4, atol=1e-4)


def test_eos_ids_are_those_of_the_tokenizer_and_of_the_generation_config(toy_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "several"
    shutil.copytree(toy_dir, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    llm = LLM(folder)
    assert llm.tokenizer.eos_token_ids == {2, 7, 9}
    free = llm.generate("hello", greedy(ignore_eos=True, max_tokens=200))[0].token_ids
    ended = llm.generate("hello", greedy(max_tokens=200))[0]
    first = next((place for place, token in enumerate(free) if token in (2, 7, 9)), None)
    assert first is not None, "the toy says none of them: take another seed"
    assert ended.token_ids == free[: first + 1]
    assert ended.finish_reason == "stop"


def test_a_padded_vocabulary_is_no_obstacle(toy: LLM) -> None:
    assert toy.model.spec.vocab_size == PADDED_VOCAB > toy.tokenizer.vocab_size
    (done,) = toy.generate("hello", SamplingParams(temperature=9.0, seed=1, max_tokens=200, ignore_eos=True))
    assert any(token >= toy.tokenizer.vocab_size for token in done.token_ids)
    assert done.text == toy.tokenizer.decode(done.token_ids)


def test_a_dtype_may_be_chosen(toy_dir: Path) -> None:
    llm = LLM(toy_dir, dtype="bfloat16")
    assert {p.dtype for p in llm.model.parameters()} == {torch.bfloat16}
    assert len(llm.generate("hello", greedy(max_tokens=5, ignore_eos=True))[0].token_ids) == 5
    with pytest.raises(UserError, match="unknown dtype 'float31'; did you mean float32"):
        LLM(toy_dir, dtype="float31")


def test_a_gguf_file_runs_as_it_is(tmp_path: Path) -> None:
    llm = LLM(write_llama(tmp_path / "toy.gguf"), dtype="float32")
    answer = "".join(llm.chat(ASK, greedy(ignore_eos=True)))
    assert answer == llm.tokenizer.decode(llm.complete([prompt_of(llm)], greedy(ignore_eos=True))[0].token_ids)


def prompt_of(llm: LLM) -> list[int]:
    return render_chat(llm.tokenizer, ASK, add_generation_prompt=True).ids


@pytest.mark.parametrize(
    ("prompt", "count", "message"),
    [
        ("", 5, "the prompt is empty"),
        ("1" * 90, 7, "90 tokens and 7 new ones do not fit into a context of 96; at most 6 new ones do"),
        ("1" * 96, 1, "96 tokens do not fit into a context of 96"),
    ],
)
def test_a_prompt_that_does_not_fit(parrot: LLM, prompt: str, count: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parrot.generate(prompt, greedy(max_tokens=count))


def test_a_model_without_a_template_does_not_chat(toy_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "base"
    shutil.copytree(toy_dir, folder)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="no chat template"):
        next(LLM(folder).chat(ASK))


def test_timing_counts_what_happened(toy: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 2))  # each look at the clock is two seconds after the one before
    monkeypatch.setattr("intaglio.engine.llm.time.perf_counter", lambda: float(next(clock)))
    toy.generate(["hello", "42"], greedy(max_tokens=5, ignore_eos=True))
    prompt_tokens = sum(map(len, toy.tokenizer.encode_batch(["hello", "42"])))
    assert toy.timing == Timing(rows=2, prompt_tokens=prompt_tokens, new_tokens=10, first_s=4.0, total_s=20.0)
    assert toy.timing.tokens_per_second == 8 / 16
    assert toy.timing.prompt_tokens_per_second == prompt_tokens / 4


def test_timing_of_a_single_token_divides_by_nothing(toy: LLM) -> None:
    toy.generate("hello", greedy(max_tokens=1))
    timing = toy.timing
    assert timing.new_tokens == 1
    assert timing.first_s == timing.total_s > 0
    assert timing.tokens_per_second == 0
    assert Timing().prompt_tokens_per_second == 0


def test_a_stream_that_is_left_tells_how_far_it_came(toy: LLM) -> None:
    stream: Iterator[object] = toy.stream([toy.tokenizer.encode("hello")], [greedy(ignore_eos=True)])
    for _ in range(4):
        next(stream)
    assert toy.timing.new_tokens == 4
