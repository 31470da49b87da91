"""Who may ask, from where."""

from collections.abc import Iterator

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from api_server import plain_tokenizer, served
from scripted_engine import ScriptedEngine

KEYS = ("first-key", "zweiter-schlüssel")
ORIGIN = {"Origin": "https://example.org"}
PREFLIGHT = {**ORIGIN, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with served(ScriptedEngine(plain_tokenizer()), api_keys=KEYS, cors=("https://example.org",)) as client:
        yield client


def test_everything_needs_the_key_but_health_and_the_page(client: TestClient) -> None:
    # case 39: every route there is, and what is no route
    app = client.app
    paths = [*app.openapi()["paths"]]  # type: ignore[attr-defined]
    pages = [route.path for route in app.routes if isinstance(route, Route)]  # type: ignore[attr-defined]
    assert {"/v1/models", "/tokenize", "/health"} <= {*paths}
    assert {"/", "/page/page.js", "/openapi.json"} <= {*pages}
    public = {"/health", *(path for path in pages if path == "/" or path.startswith("/page/"))}
    for path in [*paths, *pages, "/nowhere", "/metrics", "/page/", "/page/../v1/models", "/health/"]:
        for method in ("GET", "POST", "OPTIONS"):
            status = client.request(method, path).status_code
            assert (status != 401) == (path in public), (method, path)
    assert client.get("/health").status_code == client.get("/").status_code == 200


@pytest.mark.parametrize("header", [f"Bearer {KEYS[0]}", f"bearer {KEYS[0]}", f"Bearer {KEYS[1]}"])
def test_each_key_opens(client: TestClient, header: str) -> None:
    assert client.get("/v1/models", headers={b"Authorization": header.encode()}).status_code == 200


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", f"Basic {KEYS[0]}", KEYS[0], "Bearer first-ke", "Bearer ÿ"]
)
def test_nothing_else_opens(client: TestClient, header: str) -> None:
    answer = client.get("/v1/models", headers={b"Authorization": header.encode("latin-1")})
    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "authentication_error"
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"


def test_a_body_is_not_read_without_the_key(client: TestClient) -> None:
    answer = client.post("/v1/chat/completions", content=b"{", headers={"content-length": "99999999999"})
    assert answer.status_code == 401


def test_without_keys_everybody_may_ask() -> None:
    # Open WebUI sends none, lm-eval an empty one
    with served(ScriptedEngine(plain_tokenizer())) as client:
        for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer anything"}):
            assert client.get("/v1/models", headers=headers).status_code == 200
        assert "access-control-allow-origin" not in client.get("/v1/models", headers=ORIGIN).headers
        assert client.options("/v1/chat/completions", headers=PREFLIGHT).status_code == 405


def test_a_browser_asks_first_and_without_the_key(client: TestClient) -> None:
    answer = client.options("/v1/chat/completions", headers=PREFLIGHT)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://example.org"
    refused = client.options("/v1/chat/completions", headers={**PREFLIGHT, "Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in refused.headers


def test_a_browser_can_read_refusals(client: TestClient) -> None:
    answer = client.get("/v1/models", headers=ORIGIN)
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == "https://example.org"
    assert "x-request-id" in answer.headers["access-control-expose-headers"]


def test_no_other_page_may_hold_ours_in_a_frame(client: TestClient) -> None:
    headers = client.get("/page/page.js").headers
    assert headers["content-security-policy"] == "frame-ancestors 'none'"
    assert headers["x-content-type-options"] == "nosniff"
