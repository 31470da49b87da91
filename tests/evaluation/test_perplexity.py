"""Perplexity by a sliding window is that of transformers' recipe, and of one forward where the window holds all."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from intaglio.engine.llm import LLM
from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.evaluation import perplexity
from intaglio.evaluation.journal import Journal
from intaglio.evaluation.perplexity import Document, Sliding, measure_perplexity, perplexity_result, windows
from intaglio.evaluation.subjects.local import LocalSubject, local_subject
from intaglio.evaluation.subjects.subject import Answer, Likelihood, Prompt, SubjectGoneError, Unanswered
from intaglio.text.tokenizer import Tokenizer
from toy_llms import save_toy, toy_tokenizer

TEXTS = ["the quick brown fox", "été 中文 and so on, jumps over the lazy dog " * 3, "x"]
DOCUMENTS = [Document(text, f"a.txt:{i}") for i, text in enumerate(TEXTS)]
ALL = Sliding(256, 128)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy(tmp_path_factory.mktemp("toy") / "model")


@pytest.fixture(scope="module")
def subject(path: Path) -> LocalSubject:
    return local_subject(LLM(path), path)


@pytest.fixture(scope="module")
def peer(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype="float32").eval()


def ids_of(text: str, subject: LocalSubject) -> list[int]:
    assert subject.tokenizer is not None
    assert subject.tokenizer.bos_token_id is not None
    return [subject.tokenizer.bos_token_id, *subject.tokenizer.encode(text, add_special_tokens=False)]


@torch.inference_mode()
def recipe(model: Any, ids: Sequence[int], window: int, stride: int) -> tuple[float, int]:
    """The loop of transformers' page on perplexity, its mean losses made sums: nats and tokens."""
    rows, nats, tokens, before = torch.tensor([ids]), 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + window, len(ids))
        labels = rows[:, begin:end].clone()
        labels[:, : -(end - before)] = -100
        counted = int((labels[:, 1:] != -100).sum())
        nats += float(model(rows[:, begin:end], labels=labels).loss) * counted
        tokens, before = tokens + counted, end
        if end == len(ids):
            break
    return nats, tokens


@pytest.mark.parametrize(("window", "stride"), [(32, 16), (32, 31), (20, 7), (256, 128), (2, 1)])
def test_it_is_transformers_recipe(subject: LocalSubject, peer: Any, window: int, stride: int) -> None:
    found = measure_perplexity(subject, DOCUMENTS, Sliding(window, stride))
    expected = [recipe(peer, ids_of(text, subject), window, stride) for text in TEXTS]
    assert found.unit == "document"
    assert [part.tokens for part in found.parts.values()] == [tokens for _, tokens in expected]
    assert [part.nats for part in found.parts.values()] == pytest.approx([nats for nats, _ in expected], rel=1e-5)
    nats, tokens = (sum(one) for one in zip(*expected, strict=True))
    assert found.perplexity.mean == pytest.approx(math.exp(nats / tokens), rel=1e-5)
    num_bytes = sum(len(text.encode()) for text in TEXTS)
    assert found.total.bytes == num_bytes
    assert found.bits_per_byte.mean == pytest.approx(nats / math.log(2) / num_bytes, rel=1e-5)
    for interval in (found.perplexity, found.bits_per_byte):
        assert interval.low < interval.mean < interval.high


@torch.inference_mode()
def test_where_the_window_holds_all_it_is_one_forward(subject: LocalSubject, peer: Any) -> None:
    found = measure_perplexity(subject, DOCUMENTS[1:2], ALL)
    ids = torch.tensor([ids_of(TEXTS[1], subject)])
    assert found.perplexity.mean == pytest.approx(math.exp(float(peer(ids, labels=ids).loss)), rel=1e-5)
    assert found.unit == "window"
    assert len(found.parts) == 1


def test_packed_texts_are_one_stream_and_what_stands_between_is_not_scored(subject: LocalSubject, peer: Any) -> None:
    found = measure_perplexity(subject, DOCUMENTS, Sliding(24, 8, packed=True))
    rows = [ids_of(text, subject) for text in TEXTS]
    stream = [token for row in rows for token in row]
    assert subject.tokenizer is not None
    scored = np.array(stream) != subject.tokenizer.bos_token_id
    log_probs = []
    for start, new, end in windows(len(stream), Sliding(24, 8)):
        with torch.inference_mode():
            told = peer(torch.tensor([stream[start:end]])).logits[0].log_softmax(-1)
        log_probs += [float(told[i - start - 1, stream[i]]) for i in range(new, end) if scored[i]]
    assert found.total.nats == pytest.approx(-sum(log_probs), rel=1e-5)
    assert found.total.tokens == scored.sum() == len(log_probs)
    assert found.total.bytes == sum(len(text.encode()) for text in TEXTS)
    assert found.unit == "window"
    assert next(iter(found.parts)) == "packed[0:24]"


@pytest.mark.parametrize("length", [2, 7, 8, 9, 16, 23])
@pytest.mark.parametrize("stride", [1, 3, 7])
def test_each_token_is_scored_once_behind_enough_others(length: int, stride: int) -> None:
    found = [*windows(length, Sliding(8, stride))]
    assert [i for _, new, end in found for i in range(new, end)] == [*range(1, length)]
    assert all(end - start <= 8 for start, _, end in found)
    assert all(new - start >= 8 - stride for start, new, _ in found[1:])


class Scripted:
    """Every token costs a nat; rows with a 7 in them are not answered."""

    name = "scripted"
    context: int | None = None

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokenizer = tokenizer
        self.most = 10_000

    def identity(self) -> dict[str, Any]:
        return {}

    def likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood | Unanswered]:
        raise NotImplementedError

    def answers(self, prompts: Sequence[Prompt], params: SamplingParams) -> list[Answer | Unanswered]:
        raise NotImplementedError

    def log_probs(self, rows: Sequence[Sequence[int]]) -> list[list[float] | Unanswered]:
        bad = toy_tokenizer().encode("7")[0]
        return [Unanswered("no") if bad in row else [-1.0] * (min(len(row), self.most) - 1) for row in rows]


def test_what_is_not_answered_is_told_and_left_out() -> None:
    documents = [Document("abc", "a:1"), Document("a 7", "a:2"), Document("", "a:3")]
    told: list[tuple[int, int]] = []
    found = measure_perplexity(Scripted(toy_tokenizer()), documents, ALL, done=lambda *many: told.append(many))
    assert found.perplexity.mean == pytest.approx(math.e)
    assert ([*found.parts], found.unanswered) == (["a:1"], {"a:2": "no"})
    assert told == [(0, 2), (2, 2)]
    result = perplexity_result("a", found, "a")
    assert [(one.id, one.reason) for one in result.unanswered] == [("a:2", "no")]
    assert set(result.metrics) == {"perplexity", "bits_per_byte", "unit_bits_per_byte"}
    assert result.metrics["perplexity"].n == 1


def test_what_was_measured_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perplexity, "AT_ONCE", 2)
    documents, asked = [Document(text, text) for text in ("abc", "7", "xyz", "de", "f")], list[Sequence[int]]()

    class Mortal(Scripted):
        def log_probs(self, rows: Sequence[Sequence[int]]) -> list[list[float] | Unanswered]:
            asked.extend(rows)
            if len(asked) == 4:
                raise SubjectGoneError("gone")
            return super().log_probs(rows)

    path, subject = tmp_path / "windows.jsonl", Mortal(toy_tokenizer())
    with pytest.raises(SubjectGoneError):
        measure_perplexity(subject, documents, ALL, Journal(path, {}))
    again = measure_perplexity(subject, documents, ALL, Journal(path, {}))
    assert len(asked) == 4 + 3
    assert again == measure_perplexity(Scripted(toy_tokenizer()), documents, ALL)
    assert again.unanswered == {"7": "no"}


def test_other_texts_or_windows_have_another_hash() -> None:
    runs = [
        measure_perplexity(Scripted(toy_tokenizer()), [Document(text, where)], Sliding(8, stride))
        for text, where, stride in (("abc", "a", 4), ("abc", "b", 4), ("abd", "a", 4), ("abc", "a", 5))
    ]
    assert runs[0].hash == runs[1].hash
    assert len({run.hash for run in runs}) == 3


def test_refusals() -> None:
    with pytest.raises(UserError, match="stride of 8 does not fit a window of 8"):
        Sliding(8, 8)
    with pytest.raises(UserError, match="tokens are not known here"):
        measure_perplexity(Scripted(None), DOCUMENTS, ALL)
    with pytest.raises(UserError, match="nothing in the texts"):
        measure_perplexity(Scripted(toy_tokenizer()), [Document("", "a")], ALL)
    short = Scripted(toy_tokenizer())
    short.most = 3
    with pytest.raises(UserError, match="told 2 of 15 likelihoods: is the window longer than its context"):
        measure_perplexity(short, DOCUMENTS[:1], ALL)
