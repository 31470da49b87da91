"""A server that speaks OpenAI's protocol, and how it is asked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from intaglio.errors import UserError

if TYPE_CHECKING:
    import httpx2

    from intaglio.text.tokenizer import Tokenizer

__all__ = ["PATHS", "Endpoint", "Prompt", "Target", "ask", "name_model"]

Endpoint = Literal["chat", "completions"]
Prompt = str | list[int] | list[dict[str, Any]]
"""A text, token ids, or messages."""

_IDLE = 4.0  # seconds until a connection is not used again: servers close theirs after five, in the midst of a request
PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass
class Target:
    """A server, and how it is asked.

    Attributes:
        url: its address, with or without `/v1/...`.
        model: the model's name; None for the one that it names first.
        endpoint: which of its two kinds of completion.
        api_key: if it wants one.
        fields: more fields of each request, `ignore_eos` for one; they win over ours.
        name: what reports call it; the address where nothing is said.
        timeout: seconds after which a request has failed.
        retries: how often a request is sent anew that was answered with 429, each time after what `Retry-After` says.
        tokenizer: counts tokens where the server tells no usage, and says which words are one token.
        transport: how requests travel; None for a socket.

    Raises:
        UserError: the address is none.
    """

    url: str
    model: str | None = None
    endpoint: Endpoint = "chat"
    api_key: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    timeout: float = 600.0
    retries: int = 0
    tokenizer: "Tokenizer | None" = None
    transport: "httpx2.AsyncBaseTransport | None" = None

    def __post_init__(self) -> None:
        whole = self.url if "://" in self.url else f"http://{self.url}"
        _check(whole)
        self.url = whole.partition("/v1")[0].rstrip("/")
        self.name = self.name or self.url.partition("://")[2]

    def client(self) -> "httpx2.AsyncClient":
        """A client with as many connections as there are requests; to be closed."""
        import httpx2

        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return httpx2.AsyncClient(
            base_url=self.url,
            headers={"Accept-Encoding": "identity", **key},
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=_IDLE),
            timeout=httpx2.Timeout(None, connect=30),
            transport=self.transport,
        )

    def body(self, prompt: Prompt, max_tokens: int) -> dict[str, Any]:
        """The JSON of one request."""
        said = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        what = {"messages": said} if self.endpoint == "chat" else {"prompt": prompt}
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": self.model, **what, "max_tokens": max_tokens, "temperature": 0, **stream, **self.fields}


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.port != 0 and not set(parts.netloc) & set(" \t\n")
    except ValueError:  # a port beyond 65535, or half an IPv6 address
        good = False
    if not good or not parts.hostname:
        raise UserError("is no address of a server", where=url, mend="such as http://127.0.0.1:8000")


async def name_model(client: "httpx2.AsyncClient", target: Target) -> None:
    """Fills in the model's name where it is not given.

    Raises:
        UserError: the server does not answer, or names none.
    """
    if target.model is None:
        listed = await ask(client, target, "GET", "/v1/models")
        if not listed.get("data"):
            raise UserError("the server names no model", where=target.url, mend="give --model")
        target.model = listed["data"][0]["id"]


async def ask(client: "httpx2.AsyncClient", target: Target, method: str, path: str, body: Any = None) -> dict[str, Any]:
    """What a server answers to anything but a load.

    Raises:
        UserError: it does not answer, or with an error, or not with JSON.
    """
    import httpx2

    try:
        answer = await client.request(method, path, json=body)
        answer.raise_for_status()
        return answer.json()
    except httpx2.HTTPStatusError as error:
        where = f"{target.url}{path}"
        raise UserError(f"the server answers with {error.response.status_code}", where=where) from error
    except (httpx2.HTTPError, ValueError) as error:
        raise UserError(f"no answer: {type(error).__name__}", where=f"{target.url}{path}") from error
