"""A model here: its likelihoods are what transformers computes text by text, whatever is shared or cut."""

from pathlib import Path

import pytest
import torch

from intaglio.engine.interface import EngineConfig
from intaglio.engine.llm import LLM
from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.evaluation.subjects.local import LocalSubject, local_subject
from intaglio.evaluation.subjects.spans import encode_pair, encoder_of, first_token
from intaglio.evaluation.subjects.subject import Answer, Likelihood, Unanswered
from intaglio.models.build import build_model
from intaglio.specs import LSTMCellSpec, RecurrentSpec
from reference import Reference
from seam_doors import make_adapter
from tiny_seq2seq import random_seq2seq, seq2seq_spec
from toy_llms import ANSWER, toy_tokenizer

LONG = "the user says hello to the assistant and the assistant says hi there, thanks for the answer. "
PAIRS = [
    ("Q: who says hello?\nA:", " the user"),
    ("Q: who says hello?\nA:", " the user says"),  # one is a prefix of the other
    ("Q: who says hello?\nA:", " 你好"),
    ("Q: who says hello?\nA: ", "the user"),  # the same as the first, written otherwise
    ("Q: who says hello?\nA:\n", "the assistant"),
    (LONG, "hello"),
    (LONG, "the assistant says hi there, thanks"),
    (LONG + "one", " two"),
    ("", "the user says hello"),
    (" ", "hi"),
    ("a", "b"),
]


@pytest.fixture(scope="module")
def toy(toy_dir: Path) -> LocalSubject:
    return local_subject(LLM(toy_dir, dtype="float32"), toy_dir)


@torch.no_grad()
def naive(reference: Reference, subject: LocalSubject, pair: tuple[str, str]) -> tuple[float, bool, int]:
    """ln p of a continuation from one forward of transformers, and whether it is the likeliest."""
    tokenizer = subject.tokenizer
    span = encode_pair(encoder_of(tokenizer), first_token(tokenizer), *pair)
    told = reference.logits(span.ids).log_softmax(dim=-1)[span.start - 1 : -1]
    wanted = torch.tensor(span.ids[span.start :])
    greedy = bool((told.argmax(dim=-1) == wanted).all())
    return float(told.gather(-1, wanted[:, None]).sum()), greedy, len(wanted)


def test_likelihoods_are_those_of_a_forward_each(toy: LocalSubject, toy_dir: Path) -> None:
    reference = Reference(toy_dir)
    for _ in range(2):  # the second time out of the prefix cache
        told = toy.likelihoods(PAIRS)
        for pair, one in zip(PAIRS, told, strict=True):
            nats, greedy, count = naive(reference, toy, pair)
            assert isinstance(one, Likelihood)
            assert one.nats == pytest.approx(nats, abs=1e-4)
            assert (one.greedy, one.num_tokens) == (greedy, count)
    assert told[0].nats == told[3].nats  # type: ignore[union-attr]


def test_what_the_model_would_write_is_greedy(parrot_dir: Path) -> None:
    subject = local_subject(LLM(parrot_dir), parrot_dir)
    told = subject.likelihoods([("Q", ANSWER[1:]), ("Q", ANSWER[1:-1] + "x")])
    assert [one.greedy for one in told if isinstance(one, Likelihood)] == [True, False]


def test_a_context_is_computed_once_for_all_its_continuations(toy_dir: Path) -> None:
    llm = LLM(toy_dir, dtype="float32", config=EngineConfig(block_size=4))
    subject = local_subject(llm, toy_dir)
    subject.likelihoods([(LONG, word) for word in ("hello", "the user", "hi", "thanks")])
    length = len(subject.tokenizer.encode(LONG))
    assert llm.engine.stats().computed_tokens < 2 * length


def test_a_text_that_is_too_long_loses_its_beginning_and_is_counted(toy_dir: Path) -> None:
    llm = LLM(toy_dir, dtype="float32")
    whole = LocalSubject(llm.model, llm.tokenizer, llm.complete, longest=20)
    (told,) = whole.likelihoods([(LONG, "hello there")])
    assert whole.cut == 1
    ids = [*whole.tokenizer.encode(LONG.rstrip() + " hello there")][-20:]
    expected = Reference(toy_dir).logits(ids).log_softmax(dim=-1)
    assert isinstance(told, Likelihood)
    last = torch.tensor(ids[-told.num_tokens :])[:, None]
    assert told.nats == pytest.approx(float(expected[-told.num_tokens - 1 : -1].gather(-1, last).sum()), abs=1e-4)


def test_log_probs_of_rows(toy: LocalSubject, toy_dir: Path) -> None:
    rows = [toy.tokenizer.encode(LONG), [7], toy.tokenizer.encode("hi"), list(range(3, 259))]  # the last fills it
    told = toy.log_probs(rows)
    assert told[1] == []
    for row, one in zip(rows, told, strict=True):
        logits = Reference(toy_dir).logits(row).log_softmax(dim=-1)[:-1]
        expected = logits.gather(-1, torch.tensor(row[1:])[:, None])[:, 0].tolist()
        assert one == pytest.approx(expected, abs=1e-4)


def test_answers_to_texts_and_chats(parrot_dir: Path) -> None:
    subject = local_subject(LLM(parrot_dir), parrot_dir)
    params = SamplingParams(temperature=0, max_tokens=40)
    chat = [{"role": "user", "content": "hi"}]
    told = subject.answers(["\n", chat, "x " * 200], params)
    for one in told[:2]:
        assert isinstance(one, Answer)
        assert (one.text, one.finish_reason) == (ANSWER, "stop")
    assert isinstance(told[2], Unanswered)
    assert "leave no room" in told[2].reason
    (short,) = subject.answers(["!" * 89 + "\n"], SamplingParams(temperature=0, max_tokens=40))
    assert isinstance(short, Answer)
    assert short.finish_reason == "length"


def test_an_adapter_is_another_model(toy_dir: Path, toy: LocalSubject, tmp_path: Path) -> None:
    from intaglio.cli.options import load_llm

    folder = make_adapter(toy_dir, tmp_path / "adapter", 3)
    adapted = local_subject(load_llm(str(toy_dir), "float32", "cpu", None, folder), toy_dir, folder)
    assert adapted.identity()["adapter_hash"]
    assert adapted.identity()["model_hash"] == toy.identity()["model_hash"]
    one, other = adapted.likelihoods(PAIRS[:1])[0], toy.likelihoods(PAIRS[:1])[0]
    assert isinstance(one, Likelihood)
    assert isinstance(other, Likelihood)
    assert abs(one.nats - other.nats) > 1e-3


def test_identity_tells_models_apart(toy: LocalSubject, parrot_dir: Path) -> None:
    other = local_subject(LLM(parrot_dir), parrot_dir)
    assert toy.identity()["model_hash"] != other.identity()["model_hash"]
    assert toy.identity()["template_hash"] == other.identity()["template_hash"]
    assert toy.identity()["dtype"] == "float32"


@torch.no_grad()
def test_recurrent_models_have_likelihoods_too() -> None:
    model = build_model(RecurrentSpec(vocab_size=320, embedding_size=8, hidden_size=16, cell=LSTMCellSpec())).eval()
    tokenizer = toy_tokenizer()
    subject = LocalSubject(model, tokenizer, lambda prompts, params: [])
    (told,) = subject.likelihoods([("hello", " there")])
    ids, start = tokenizer.encode("hello there"), len(tokenizer.encode("hello"))
    expected = model(torch.tensor([ids]))[0].log_softmax(dim=-1)[start - 1 : -1]
    assert isinstance(told, Likelihood)
    wanted = torch.tensor(ids[start:])[:, None]
    assert told.nats == pytest.approx(float(expected.gather(-1, wanted).sum()), abs=1e-5)


def test_models_that_answer_a_source_have_none() -> None:
    model = random_seq2seq(seq2seq_spec(LSTMCellSpec()))
    with pytest.raises(UserError, match="no likelihood of a continuation"):
        LocalSubject(model, toy_tokenizer(), lambda prompts, params: []).likelihoods([("a", " b")])
