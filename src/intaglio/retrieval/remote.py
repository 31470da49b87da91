"""A chat model behind any URL that speaks OpenAI's protocol."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from intaglio.data.unpacking import needs
from intaglio.errors import UserError
from intaglio.retrieval.answerers import LIKELIEST
from intaglio.text.chat import render_chat
from intaglio.text.messages import Message
from intaglio.text.tokenizer import Tokenizer

__all__ = ["UrlAnswerer"]


class UrlAnswerer:
    """A model behind a server; see `Answerer`.

    Args:
        url: the server's address, with or without `/v1`.
        model: the model's name; None for the first that the server names.
        api_key: if the server wants one.
        tokenizer: counts the tokens for a server that does not (`/tokenize`, which vLLM and ours have).

    Raises:
        UserError: the server does not answer, or names no model.
    """

    def __init__(
        self, url: str, model: str | None = None, api_key: str | None = None, tokenizer: Tokenizer | None = None
    ) -> None:
        httpx2 = needs("httpx2", "httpx2", url, extra="rag")
        self.url = url.rstrip("/").removesuffix("/v1")
        key = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx2.Client(base_url=self.url, headers=key, timeout=httpx2.Timeout(None, connect=30))
        self._tokenizer = tokenizer
        self.model, self.context = self._chosen(model)

    def count(self, messages: Sequence[Message]) -> int:
        """See `Answerer`.

        Raises:
            UserError: the server does not tell, and there is no tokenizer.
        """
        if self._tokenizer is not None:
            return len(render_chat(self._tokenizer, messages, add_generation_prompt=True).ids)
        body = {"model": self.model, "messages": messages, "add_generation_prompt": True}
        try:
            return int(self._asked("POST", "/tokenize", body)["count"])
        except (UserError, KeyError) as error:
            mend = "name the model's tokenizer, with which they are counted here"
            raise UserError("the server does not count tokens", where=self.url, mend=mend) from error

    def stream(self, messages: Sequence[Message], max_tokens: int) -> Iterator[str]:
        """See `Answerer`.

        Raises:
            UserError: the server refuses, or breaks off.
        """
        import httpx2

        body = self._body(messages, max_tokens, stream=True)
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as answer:
                if answer.status_code != 200:
                    answer.read()
                answer.raise_for_status()
                yield from _texts(answer.iter_lines(), self.url)
        except (httpx2.HTTPError, ValueError) as error:
            raise _refused(error, f"{self.url}/v1/chat/completions") from error

    def first_words(self, messages: Sequence[Message]) -> dict[str, float]:
        """See `Answerer`.

        Raises:
            UserError: the server refuses, or tells no log-probabilities.
        """
        body = self._body(messages, 1, logprobs=True, top_logprobs=LIKELIEST)
        answer = self._asked("POST", "/v1/chat/completions", body)
        told = answer["choices"][0].get("logprobs") or {}
        if not told.get("content"):
            raise UserError("the server tells no log-probabilities", where=self.url)
        return {one["token"]: one["logprob"] for one in told["content"][0]["top_logprobs"]}

    def _body(self, messages: Sequence[Message], max_tokens: int, **more: Any) -> dict[str, Any]:
        return {"model": self.model, "messages": messages, "max_tokens": max_tokens, "temperature": 0, **more}

    def _chosen(self, model: str | None) -> tuple[str, int | None]:
        """The model's name, and how many tokens it reads where the server says so."""
        for card in self._asked("GET", "/v1/models").get("data") or ():
            if model in (None, card["id"]):
                return card["id"], card.get("max_model_len")
        raise UserError(f"the server has no model {model or ''}".rstrip(), where=self.url, mend="name another")

    def _asked(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        import httpx2

        try:
            answer = self._client.request(method, path, json=body)
            answer.raise_for_status()
            return answer.json()
        except (httpx2.HTTPError, ValueError) as error:
            raise _refused(error, f"{self.url}{path}") from error


def _texts(lines: Iterator[str], url: str) -> Iterator[str]:
    """The texts of a stream of events, up to `[DONE]`."""
    for line in lines:
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data == "[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            raise UserError("the answer broke off", where=url)
        for choice in event.get("choices") or ():
            yield choice["delta"].get("content") or ""


def _refused(error: Exception, where: str) -> UserError:
    response = getattr(error, "response", None)
    what = f"no answer: {type(error).__name__}" if response is None else f"the server answers {response.status_code}"
    return UserError(what, where=where)
