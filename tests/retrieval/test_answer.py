"""From a question to an answer: the budget, the threshold, citations, and models that answer, here or behind a URL."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from intaglio.engine.llm import LLM
from intaglio.errors import UserError
from intaglio.retrieval.answer import Grounding, answer
from intaglio.retrieval.answerers import LocalAnswerer
from intaglio.retrieval.citations import cite
from intaglio.retrieval.prompt import NOT_FOUND, Source, fitted_prompt
from intaglio.retrieval.remote import UrlAnswerer
from intaglio.retrieval.rerank import LLMReranker
from intaglio.retrieval.search import Searcher
from intaglio.retrieval.threshold import strength, threshold
from intaglio.text.chat import render_chat
from intaglio.text.messages import Message
from scripted_answerer import Scripted
from toy_documents import put, toy_searcher
from toy_llms import toy_tokenizer

FERRY = "When does the ferry to the island leave?"


@pytest.fixture
def searcher(tmp_path: Path) -> Searcher:
    return toy_searcher(tmp_path)


@pytest.fixture
def grounding(searcher: Searcher) -> Grounding:
    return Grounding(searcher, budget=2000)


def test_an_answer_with_its_place(grounding: Grounding) -> None:
    said: list[str] = []
    model = Scripted("At nine", " [1].")
    made = answer(grounding, FERRY, model, say=said.append)
    assert (made.text, made.found, said) == ("At nine [1].", True, ["At nine", " [1]."])
    (citation,) = made.citations
    assert (citation.file, citation.line, citation.last_line) == ("boats.md", 1, 1)
    assert (citation.by, citation.state) == ("model", "verified")
    assert made.prompt is not None
    assert made.prompt.tokens == model.count(model.asked[0])
    assert "[1] boats.md: Boats\nThe ferry to the island leaves at nine." in model.asked[0][-1]["content"]


def test_what_the_documents_do_not_hold_is_not_asked(grounding: Grounding) -> None:
    model = Scripted("Paris.")
    made = answer(grounding, "Which capital has the Eiffel Tower?", model)
    assert (made.text, made.found, made.citations, made.prompt) == (NOT_FOUND, False, [], None)
    assert not model.asked


def test_the_threshold_is_what_strangers_stay_below(searcher: Searcher) -> None:
    limit = threshold(searcher)
    assert 0 < limit < strength(searcher.search(FERRY, 5))
    assert threshold(searcher) == limit
    kept = searcher.index.path / "threshold.json"
    kept.write_text(json.dumps({"version": searcher.index.version, "threshold": 0.123}))
    assert threshold(searcher) == 0.123  # measured once
    put(searcher.index, "cellar.md", ["How do I get red wine out of a tablecloth? With salt."])
    assert threshold(searcher) not in (0.123, limit)  # and anew when the documents change


def test_a_question_that_goes_on_is_tried_behind_the_one_before(grounding: Grounding) -> None:
    count = Scripted().count
    before: list[Message] = [{"role": "user", "content": FERRY}, {"role": "assistant", "content": "At nine."}]
    follow: list[Message] = [{"role": "user", "content": "And is it often late?"}]
    assert grounding.ground(follow, count).prompt is None
    grounded = grounding.ground(before + follow, count)
    assert grounded.prompt is not None
    assert grounded.prompt.messages[:2] == before
    assert grounded.prompt.messages[-1]["content"].endswith("Question: And is it often late?")


@pytest.mark.parametrize("budget", range(700, 2000, 130))
def test_the_budget_is_kept_to_the_token(searcher: Searcher, budget: int) -> None:
    tokenizer = toy_tokenizer()
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": FERRY}]
    hits = searcher.search("ferry island breakfast room dogs vet crowns", 5)

    def count(said: Sequence[Message]) -> int:
        return len(render_chat(tokenizer, said, add_generation_prompt=True).ids)

    prompt = fitted_prompt(messages, hits, count, budget)
    assert prompt.tokens == count(prompt.messages) <= budget
    numbers = [source.number for source in prompt.sources]
    assert numbers == list(range(1, len(numbers) + 1))
    if len(numbers) < len(hits):  # the next one would have been too much
        following = str(Source(len(numbers) + 1, hits[len(numbers)].chunk, hits[len(numbers)].chunk.text))
        content = prompt.messages[-1]["content"].replace("\n\nQuestion:", f"\n\n{following}\n\nQuestion:")
        assert count([messages[0], {"role": "user", "content": content}]) > budget


def test_a_passage_too_long_is_shortened_by_words(searcher: Searcher) -> None:
    hits = searcher.search(FERRY, 1)
    model = Scripted()
    whole = fitted_prompt([{"role": "user", "content": FERRY}], hits, model.count, 5000)
    prompt = fitted_prompt([{"role": "user", "content": FERRY}], hits, model.count, whole.tokens - 1)
    assert prompt.sources[0].text == "The ferry to the island leaves at"
    with pytest.raises(UserError, match=r"the question takes \d+ of 100 tokens"):
        fitted_prompt([{"role": "user", "content": FERRY}], hits, model.count, 100)


@pytest.mark.parametrize(
    ("text", "numbers", "by"),
    [
        ("Crowns [2], and nine [1, 2].", [2, 1], "model"),
        ("See [7] and [0] and [x].", [], "overlap"),
        ("The ferry leaves at nine.", [1], "overlap"),
        ("Quasars shine brightly.", [], "overlap"),
        (NOT_FOUND, [], "overlap"),
        ("", [], "overlap"),
    ],
)
def test_citations_exist(searcher: Searcher, text: str, numbers: list[int], by: str) -> None:
    sources = [Source(n, hit.chunk, hit.chunk.text) for n, hit in enumerate(searcher.search("ferry crowns", 2), 1)]
    found = cite(text, sources, searcher.index)
    assert [citation.number for citation in found] == numbers
    assert {citation.by for citation in found} <= {by}


def test_a_citation_says_whether_its_file_is_still_the_same(searcher: Searcher) -> None:
    sources = [Source(1, searcher.search(FERRY, 1)[0].chunk, "")]
    file = Path(searcher.index.settings.folder) / "boats.md"
    text = file.read_text()

    def state() -> str:
        return cite("[1]", sources, searcher.index)[0].state

    assert state() == "verified"
    file.write_text("Another line.\n" + text)
    assert state() == "changed"
    file.write_text(text)
    assert state() == "verified"  # by its content
    file.unlink()
    assert state() == "missing"


def test_prompt_and_answer_must_fit_the_model(grounding: Grounding) -> None:
    with pytest.raises(UserError, match="2000 tokens of prompt and 256 of answer"):
        answer(grounding, FERRY, Scripted(context=2255))
    answer(grounding, FERRY, Scripted(context=2256))


def test_a_model_can_order_anew(searcher: Searcher) -> None:
    hits = searcher.search("ferry vet crowns", 6, rerank=LLMReranker(Scripted()))
    assert "vet" in hits[0].chunk.text
    assert hits[0].score == pytest.approx(1 / (1 + 2.718281828 ** (-3.0 + 0.1)))
    assert hits[1].score == 0.0


def test_a_model_of_ours_answers(parrot_dir: Path) -> None:
    model = LocalAnswerer(LLM(parrot_dir))
    messages: list[Message] = [{"role": "user", "content": "hi"}]
    assert model.context == 96
    assert model.count(messages) == len(render_chat(toy_tokenizer(), messages, add_generation_prompt=True).ids)
    assert "".join(model.stream(messages, 20)) == "QUICK BROWNé"
    likely = model.first_words(messages)
    assert max(likely, key=likely.__getitem__) == "Q"


CLIENT = httpx2.Client
Handler = Callable[[httpx2.Request], httpx2.Response]


def behind(monkeypatch: pytest.MonkeyPatch, handler: Handler, **more: Any) -> UrlAnswerer:
    """A model behind a server that answers so."""

    def client(**options: Any) -> httpx2.Client:
        return CLIENT(**options, transport=httpx2.MockTransport(handler))

    monkeypatch.setattr(httpx2, "Client", client)
    return UrlAnswerer("http://x/v1/", **more)


def server(request: httpx2.Request) -> httpx2.Response:
    """A server such as ours."""
    if request.url.path == "/v1/models":
        assert request.headers["authorization"] == "Bearer k"
        return httpx2.Response(200, json={"data": [{"id": "m", "max_model_len": 64}, {"id": "n"}]})
    body = json.loads(request.content)
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    if request.url.path == "/tokenize":
        return httpx2.Response(200, json={"count": 7})
    assert (body["model"], body["temperature"]) == ("m", 0)
    if body.get("logprobs"):
        content = [{"token": "Yes", "top_logprobs": [{"token": "Yes", "logprob": -0.5}]}]
        return httpx2.Response(200, json={"choices": [{"logprobs": {"content": content}}]})
    events = [{"choices": [{"delta": delta}]} for delta in ({"role": "assistant"}, {"content": "a"}, {"content": "b"})]
    lines = [f"data: {json.dumps(event)}\n\n" for event in [*events, {"choices": [], "usage": {}}]]
    return httpx2.Response(200, text="".join([*lines, "data: [DONE]\n\n"]))


def test_a_model_behind_a_url_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = behind(monkeypatch, server, api_key="k")
    messages: list[Message] = [{"role": "user", "content": "hi"}]
    assert (model.model, model.context, model.count(messages)) == ("m", 64, 7)
    assert "".join(model.stream(messages, 5)) == "ab"
    assert model.first_words(messages) == {"Yes": -0.5}


def test_what_servers_lack_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(request: httpx2.Request) -> httpx2.Response:
        known = request.url.path == "/v1/models"
        return httpx2.Response(200, json={"data": [{"id": "m"}]}) if known else httpx2.Response(404)

    messages: list[Message] = [{"role": "user", "content": "hi"}]
    model = behind(monkeypatch, plain)
    assert model.context is None
    with pytest.raises(UserError, match="does not count tokens"):
        model.count(messages)
    with pytest.raises(UserError, match="answers 404"):
        list(model.stream(messages, 5))
    counted = behind(monkeypatch, plain, tokenizer=toy_tokenizer()).count(messages)
    assert counted == len(render_chat(toy_tokenizer(), messages, add_generation_prompt=True).ids)
    with pytest.raises(UserError, match="the server has no model q"):
        behind(monkeypatch, plain, model="q")


def test_a_stream_that_breaks_off_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/v1/models":
            return httpx2.Response(200, json={"data": [{"id": "m"}]})
        return httpx2.Response(200, text='data: {"error": {"message": "dead"}}\n\n')

    with pytest.raises(UserError, match="broke off"):
        list(behind(monkeypatch, broken).stream([{"role": "user", "content": "hi"}], 5))
