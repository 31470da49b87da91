"""A model behind a URL: the same likelihoods as here, and what becomes of servers that are busy, stumble or go away."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from intaglio.engine.interface import EngineConfig
from intaglio.engine.llm import LLM
from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.evaluation.subjects.asking import Asker
from intaglio.evaluation.subjects.local import LocalSubject, local_subject
from intaglio.evaluation.subjects.remote import RemoteSubject
from intaglio.evaluation.subjects.subject import Answer, Likelihood, SubjectGoneError, Unanswered
from intaglio.serving import worker
from intaglio.serving.app import create_app
from intaglio.serving.messages import Launch
from intaglio.serving.remote import LocalEngine
from intaglio.serving.service import Service
from scripted_completions import ScriptedCompletions, scripted_completions

PAIRS = [("the user says", " hello"), ("the user says", " hi there"), ("the user says ", "hello"), ("", "hello there")]
GREEDY = SamplingParams(temperature=0, max_tokens=8, stop=("\n",))
BUSY = (429, {"Retry-After": "7"}, b"{}")


@pytest.fixture(scope="module")
def toy(toy_dir: Path) -> LocalSubject:
    return local_subject(LLM(toy_dir, dtype="float32"), toy_dir)


@pytest.fixture
def server(toy: LocalSubject) -> Iterator[ScriptedCompletions]:
    with scripted_completions(toy) as server:
        yield server


class Clock:
    """Sleeps without taking time."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)


def subject_of(server: ScriptedCompletions, clock: Clock | None = None, **more: object) -> RemoteSubject:
    asker = Asker(f"{server.url}/v1", sleep=clock or Clock(), patience_s=60)
    return RemoteSubject(asker, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("tells_more", [True, False])
@pytest.mark.parametrize("own_tokenizer", [True, False])
def test_likelihoods_are_those_of_the_model_itself(
    server: ScriptedCompletions, toy: LocalSubject, tells_more: bool, own_tokenizer: bool
) -> None:
    server.tells_more = tells_more  # the entry of what is made behind the prompt
    pairs = PAIRS if own_tokenizer else PAIRS[:3]  # the server says nothing of what begins a text
    subject = subject_of(server, tokenizer=toy.tokenizer if own_tokenizer else None)
    for told, own in zip(subject.likelihoods(pairs), toy.likelihoods(pairs), strict=True):
        assert isinstance(told, Likelihood)
        assert isinstance(own, Likelihood)
        assert told.nats == pytest.approx(own.nats, abs=1e-5)
        assert told.num_tokens == own.num_tokens
    assert all(body["max_tokens"] == 1 and body["echo"] and body["logprobs"] == 1 for body in server.asked)
    counted = [path for path, _ in server.requests].count("/tokenize")
    assert bool(counted) is not own_tokenizer
    subject.likelihoods(pairs)
    assert [path for path, _ in server.requests].count("/tokenize") == counted  # remembered


def test_log_probs_are_those_of_the_model_itself(server: ScriptedCompletions, toy: LocalSubject) -> None:
    rows = [toy.tokenizer.encode("hello there"), [5], [7, 8, 9]]
    for told, own in zip(subject_of(server).log_probs(rows), toy.log_probs(rows), strict=True):
        assert told == pytest.approx(own)


def test_answers_to_texts_and_chats(server: ScriptedCompletions) -> None:
    server.say = lambda body: str(body.get("prompt") or body["messages"][-1]["content"])[::-1]
    told = subject_of(server).answers(["abc", [{"role": "user", "content": "def"}]], GREEDY)
    assert told == [Answer("cba", "stop", 3), Answer("fed", "stop", 3)]
    assert all(body["stop"] == ["\n"] and body["temperature"] == 0 and body["max_tokens"] == 8 for body in server.asked)
    assert {path for path, _ in server.requests} == {"/v1/completions", "/v1/chat/completions"}


def test_a_busy_server_is_waited_for_as_long_as_it_says(server: ScriptedCompletions) -> None:
    clock = Clock()
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    server.troubles = [BUSY, (429, {"Retry-After": later}, b""), (503, {"Retry-After": "2"}, b""), (429, {}, b"")]
    (told,) = subject_of(server, clock).answers(["x"], GREEDY)
    assert isinstance(told, Answer)
    assert clock.slept[0] == 7
    assert clock.slept[1] == pytest.approx(20, abs=2)
    assert clock.slept[2] == 2
    assert len(clock.slept) == 4


def test_a_server_that_stays_busy_is_given_up(server: ScriptedCompletions) -> None:
    clock = Clock()
    server.always = BUSY
    with pytest.raises(SubjectGoneError, match="is busy for more than 60 s"):
        subject_of(server, clock).answers(["x"], GREEDY)
    assert sum(clock.slept) <= 60


@pytest.mark.parametrize("trouble", ["drop", (500, {}, b""), (502, {}, b"<html>")])
def test_what_stumbles_is_tried_again(server: ScriptedCompletions, trouble: object) -> None:
    clock = Clock()
    server.troubles = [trouble] * 3  # type: ignore[list-item]
    (told,) = subject_of(server, clock).answers(["x"], GREEDY)
    assert isinstance(told, Answer)
    assert clock.slept == [0.5, 1.0, 2.0]


def test_one_request_may_be_too_much_for_a_server_that_is_well(server: ScriptedCompletions) -> None:
    server.troubles = [(500, {}, b"")] * 5
    told = subject_of(server, concurrency=1).answers(["x", "y"], GREEDY)
    assert told[0] == Unanswered("status 500 from /v1/completions, 5 times")
    assert isinstance(told[1], Answer)


def test_a_server_that_is_gone_ends_it(server: ScriptedCompletions) -> None:
    subject = subject_of(server, concurrency=2)
    server.always = "drop"
    with pytest.raises(SubjectGoneError, match="does not answer any more"):
        subject.answers(["x"] * 40, GREEDY)
    assert len(server.asked) <= 2 * 5 + 2


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<html>", "no JSON"),
        (b"[1]", "no JSON object"),
        (b'{"choices": []}', "no choice"),
        (b'{"choices": [{"text": null}]}', "no text"),
        (b'{"choices": [{"text": 3}]}', "no text"),
    ],
)
def test_malformed_answers_are_no_answers(server: ScriptedCompletions, body: bytes, why: str) -> None:
    server.troubles = [(200, {}, body)]
    told = subject_of(server, concurrency=1).answers(["x", "y"], GREEDY)
    assert isinstance(told[0], Unanswered)
    assert why in told[0].reason
    assert isinstance(told[1], Answer)


@pytest.mark.parametrize(
    "logprobs", ['{"token_logprobs": [null, -1.0]}', '{"token_logprobs": [null, "x"]}', '{"tokens": []}', "[1]"]
)
def test_malformed_log_probabilities_are_none(server: ScriptedCompletions, toy: LocalSubject, logprobs: str) -> None:
    server.troubles = [(200, {}, f'{{"choices": [{{"logprobs": {logprobs}}}]}}'.encode())]
    told = subject_of(server, concurrency=1, tokenizer=toy.tokenizer).likelihoods([PAIRS[1], PAIRS[0]])
    assert isinstance(told[0], Unanswered)
    assert isinstance(told[1], Likelihood)


def test_a_refused_request_is_told_in_the_servers_words(server: ScriptedCompletions) -> None:
    server.troubles = [(400, {}, b'{"error": {"message": "too long"}}')]
    assert subject_of(server, concurrency=1).answers(["x"], GREEDY) == [Unanswered("status 400: too long")]


def test_what_every_request_would_meet_is_the_users_mistake(server: ScriptedCompletions, toy: LocalSubject) -> None:
    server.key = "secret"
    with pytest.raises(UserError, match="401: wrong key; give the right --api-key"):
        subject_of(server).answers(["x"], GREEDY)
    server.key, server.tokenizes = None, False
    with pytest.raises(UserError, match="does not tell how it tokenises; give --tokenizer DIR"):
        subject_of(server).likelihoods(PAIRS)
    server.tells_logprobs = False
    with pytest.raises(UserError, match="tells no log-probabilities of a prompt"):
        subject_of(server, tokenizer=toy.tokenizer).likelihoods(PAIRS)
    with pytest.raises(UserError, match="has no model other; it has: toy"):
        subject_of(server, model="other")
    with pytest.raises(UserError, match="does not answer"):
        RemoteSubject(Asker("http://127.0.0.1:9", sleep=Clock()))


def test_identity_names_server_and_model(server: ScriptedCompletions, toy: LocalSubject) -> None:
    told = subject_of(server, tokenizer=toy.tokenizer).identity()
    assert (told["url"], told["model"], told["max_model_len"]) == (server.url, "toy", 256)
    assert told["template_hash"] == toy.identity()["template_hash"]


def test_a_text_as_long_as_the_context_loses_its_beginning(server: ScriptedCompletions, toy: LocalSubject) -> None:
    subject = subject_of(server, tokenizer=toy.tokenizer)
    (told,) = subject.likelihoods([("x " * 200, "hello")])
    assert isinstance(told, Likelihood)
    assert subject.cut == 1
    assert len(server.asked[-1]["prompt"][0]) == 255


def test_our_own_server_says_what_the_model_says(toy_dir: Path, toy: LocalSubject) -> None:
    """With its tokens counted by the server."""
    served = LocalEngine(*worker._build(Launch(str(toy_dir), "float32", "cpu", None, EngineConfig(num_blocks=64))), {})
    service = Service(served, toy.tokenizer, ("toy",))
    with TestClient(create_app(service)) as client:
        assert client.portal is not None
        client.portal.call(served.start)
        asker = Asker("http://testserver")
        asker._client = client
        subject = RemoteSubject(asker)
        pairs = PAIRS[:3]
        for told, own in zip(subject.likelihoods(pairs), toy.likelihoods(pairs), strict=True):
            assert isinstance(told, Likelihood)
            assert isinstance(own, Likelihood)
            assert (told.num_tokens, told.greedy) == (own.num_tokens, own.greedy)
            assert told.nats == pytest.approx(own.nats, abs=1e-4)
        chat = [{"role": "user", "content": "hello"}]
        assert [_text(one) for one in subject.answers(["the user", chat], GREEDY)] == [
            _text(one) for one in toy.answers(["the user", chat], GREEDY)
        ]
        assert subject.context == toy.context
        client.portal.call(served.stop)


def _text(one: Answer | Unanswered) -> str:
    assert isinstance(one, Answer)
    return one.text
