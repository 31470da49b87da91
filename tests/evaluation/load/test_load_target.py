"""A server's address, key and model."""

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.load.target import Target, name_model
from scripted_stream import Script, ScriptedTransport
from virtual_time import run_virtual


@pytest.mark.parametrize("given", ["x:1", "http://x:1", "http://x:1/", "x:1/v1", "http://x:1/v1/chat/completions"])
def test_an_address_is_the_servers(given: str) -> None:
    target = Target(given)
    assert (target.url, target.name) == ("http://x:1", "x:1")


@pytest.mark.parametrize("given", ["", "http://", "a b", "ftp://x", "x:99999", "x:0", "http://[::1"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(UserError, match="is no address of a server"):
        Target(given)


def test_the_key_is_sent() -> None:
    assert Target("x", api_key="k").client().headers["Authorization"] == "Bearer k"
    assert "Authorization" not in Target("x").client().headers


async def named(target: Target) -> str | None:
    async with target.client() as client:
        await name_model(client, target)
    return target.model


def test_the_model_is_the_first_that_is_served() -> None:
    assert run_virtual(named(Target("x", transport=ScriptedTransport(Script())))) == "scripted"
    assert run_virtual(named(Target("127.0.0.1:9", "mine"))) == "mine"


def test_a_server_that_does_not_answer_is_the_users_to_know() -> None:
    with pytest.raises(UserError, match="no answer: ConnectError"):
        run_virtual(named(Target("127.0.0.1:9")))

    class Nameless(Script):
        def plain(self, path: str, body: object) -> tuple[int, object]:
            return 200, {"data": []}

    with pytest.raises(UserError, match="names no model"):
        run_virtual(named(Target("x", transport=ScriptedTransport(Nameless()))))
