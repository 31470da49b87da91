"""Adapters beside a model: chosen by name, loaded from the one folder that is open, and let go."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from api_server import events, plain_tokenizer, served
from intaglio.errors import UserError
from intaglio.files import write_json
from intaglio.serving.service import Service
from intaglio.text.tokenizer import Tokenizer
from peft_folders import peft_folder
from scripted_engine import ScriptedEngine
from toy_tokenizers import CHATML_TOKENS, byte_level

LOAD, UNLOAD, CHAT = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(plain_tokenizer())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The open one, with an adapter `cats` in it, and another adapter beside it."""
    peft_folder(tmp_path / "open" / "cats")
    peft_folder(tmp_path / "outside")
    return tmp_path / "open"


@pytest.fixture
def client(engine: ScriptedEngine, folder: Path) -> Iterator[TestClient]:
    with served(engine, adapter_folder=folder) as client:
        yield client


def load(client: TestClient, path: object, name: str = "x") -> Any:
    return client.post(LOAD, json={"lora_name": name, "lora_path": str(path)})


def refusal(answer: Any, status: int = 400) -> str:
    """What a refused request is told."""
    assert answer.status_code == status, answer.text
    message: str = answer.json()["error"]["message"]
    return message


def prompt(engine: ScriptedEngine) -> str:
    """What was asked last, as text."""
    return engine.tokenizer.decode(engine.asked[-1][0], skip_special_tokens=False)


def names(client: TestClient) -> list[str]:
    return [card["id"] for card in client.get("/v1/models").json()["data"]]


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
def test_off_unless_a_folder_is_open(engine: ScriptedEngine, folder: Path, path: str) -> None:
    with served(engine) as client:
        assert "--adapter-folder" in refusal(client.post(path, json={"lora_name": "x", "lora_path": "cats"}), 404)
        assert "--adapter-folder" in refusal(client.post(path, content=b"{"), 404)
        assert path not in client.get("/openapi.json").json()["paths"]
    with served(engine, adapter_folder=folder) as client:
        assert path in client.get("/openapi.json").json()["paths"]
    with served(engine, ("key",), adapter_folder=folder) as client:
        assert client.post(path, json={"lora_name": "x", "lora_path": "cats"}).status_code == 401
    assert engine.adapters == {}


def test_a_request_runs_under_the_adapter_that_it_names(
    client: TestClient, engine: ScriptedEngine, folder: Path
) -> None:
    card = load(client, "cats").json()
    assert (card["id"], card["root"], card["parent"]) == ("x", str(folder / "cats"), "toy")
    assert client.get("/v1/models/x").json() == card
    assert client.get("/v1/models").json()["data"][2] == card
    assert engine.adapters == {"x": str(folder / "cats")}
    for model in ("x", "alias", None):
        asked = {**HI, "model": model}
        said = model or "toy"
        assert client.post(CHAT, json=asked).json()["model"] == said
        assert client.post("/v1/completions", json={"prompt": "a", "model": model}).json()["model"] == said
        *chunks, done = events(client.post(CHAT, json={**asked, "stream": True}).text)
        assert (done, {chunk["model"] for chunk in chunks}) == ("[DONE]", {said})
    assert engine.under == ["x"] * 3 + [None] * 6
    two = client.post("/v1/completions", json={"prompt": ["a", "b"], "model": "x"})
    assert (len(two.json()["choices"]), engine.under[9:]) == (2, ["x", "x"])


def test_an_adapter_that_is_let_go_is_no_model_any_more(client: TestClient, engine: ScriptedEngine) -> None:
    assert load(client, "cats").status_code == 200
    gone = client.post(UNLOAD, json={"lora_name": "x"})
    assert gone.json() == {"id": "x", "object": "model", "deleted": True}
    assert (names(client), engine.adapters) == (["toy", "alias"], {})
    assert refusal(client.post(CHAT, json={**HI, "model": "x"}), 404).endswith("served: toy, alias")
    assert client.get("/v1/models/x").status_code == 404
    assert refusal(client.post(UNLOAD, json={"lora_name": "x"}), 404) == "there is no adapter of this name"
    assert load(client, "cats").status_code == 200
    assert names(client) == ["toy", "alias", "x"]


def test_only_what_lies_in_the_folder_is_loaded(client: TestClient, engine: ScriptedEngine, folder: Path) -> None:
    outside = folder.parent / "outside"
    (folder / "link").symlink_to(outside)
    (folder / "loop").symlink_to(folder / "loop")
    (peft_folder(folder / "leaky") / "chat_template.jinja").symlink_to("/etc/passwd")
    peft_folder(folder / "deep")
    (folder / "deep" / "more").symlink_to(outside, target_is_directory=True)
    peft_folder(folder.parent / "open-but-not-quite")
    asked = ["..", "../outside", outside, "cats/../../outside", "link", "link/.", "loop", "leaky", "deep", "/etc"]
    asked += ["nothing", "../nothing", "/nothing", "cats\0", "cats/adapter_config.json", "../open-but-not-quite"]
    asked += ["~", "y" * 4000, "a/" * 2000, "file:///etc", "//etc"]
    said = {refusal(load(client, path)) for path in asked}
    assert said == {"lora_path: no folder inside the one that adapters are loaded from"}
    assert refusal(load(client, "y" * 5000)).startswith("lora_path: ")
    assert (engine.adapters, names(client)) == ({}, ["toy", "alias"])
    (folder / "again").symlink_to(folder / "cats")
    for name, path in {"a": folder / "cats", "b": "cats/../cats", "c": "./cats/", "d": "again"}.items():
        assert load(client, path, name).json()["root"] == str(folder / "cats")


def test_the_open_folder_may_be_a_link_itself(engine: ScriptedEngine, folder: Path) -> None:
    link = folder.parent / "by another way"
    link.symlink_to(folder)
    with served(engine, adapter_folder=link) as client:
        assert load(client, "cats", "a").status_code == 200
        assert load(client, link / "cats", "b").status_code == 200


@pytest.mark.parametrize("name", ["toy", "alias", "", "a/b", "a b", "..", "keys", "x" * 300, "a\n", 3, None])
def test_names_that_cannot_be(client: TestClient, engine: ScriptedEngine, name: Any) -> None:
    assert client.post(LOAD, json={"lora_name": name, "lora_path": "cats"}).status_code == 400
    assert engine.adapters == {}


def test_a_name_is_taken_once(client: TestClient, engine: ScriptedEngine, folder: Path) -> None:
    assert load(client, "cats").status_code == 200
    assert refusal(load(client, "cats")) == "there is an adapter 'x' already; unload it first"
    service = Service(engine, engine.tokenizer, ("toy",))
    engine.pause = 0.01

    async def twice() -> list[Any]:
        both = (service.load_adapter("y", folder / "cats") for _ in range(2))
        return await asyncio.gather(*both, return_exceptions=True)

    found = asyncio.run(twice())
    assert [isinstance(one, UserError) for one in found].count(True) == 1


def test_what_is_no_adapter_for_this_model_is_not_listed(
    client: TestClient, engine: ScriptedEngine, folder: Path
) -> None:
    (folder / "empty").mkdir()
    assert "no adapter: there is no adapter_config.json" in refusal(load(client, "empty"))
    peft_folder(folder / "refused")
    assert "for another model" in refusal(load(client, "refused"))
    assert names(client) == ["toy", "alias"]


def test_without_an_engine_nothing_is_loaded(client: TestClient, engine: ScriptedEngine) -> None:
    engine.state = "dead"
    assert load(client, "cats").status_code == 503
    assert client.post(UNLOAD, json={"lora_name": "x"}).status_code == 503


def test_what_the_engine_has_lost_is_no_model(client: TestClient, engine: ScriptedEngine) -> None:
    assert load(client, "cats").status_code == 200
    engine.adapters.clear()
    assert names(client) == ["toy", "alias"]
    assert client.post(CHAT, json={**HI, "model": "x"}).status_code == 404
    assert load(client, "cats").status_code == 200


def test_its_own_template_is_what_an_adapter_reads(client: TestClient, engine: ScriptedEngine, folder: Path) -> None:
    (folder / "cats" / "chat_template.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    load(client, "cats", "file")
    spoken = peft_folder(folder / "spoken")
    plain_tokenizer("{{ messages[0].content }}, said {{ eos_token }}").save(spoken)
    load(client, "spoken", "whole")
    read = {}
    for model in ("file", "whole", "toy"):
        client.post(CHAT, json={**HI, "model": model})
        read[model] = prompt(engine)
        ids = client.post("/tokenize", json={**HI, "model": model}).json()["tokens"]
        assert ids == engine.asked[-1][0]
    usual = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert read == {"file": "[hi]", "whole": "hi, said <|im_end|>", "toy": usual}
    assert client.post("/detokenize", json={"model": "file", "tokens": [2]}).json() == {"prompt": "<|im_end|>"}


def test_a_template_of_the_operator_stands_in_for_the_models_and_not_for_the_adapters(
    engine: ScriptedEngine, folder: Path
) -> None:
    from intaglio.text.chat import ChatTemplate

    plain_tokenizer().save(folder / "cats")  # the model's own
    (peft_folder(folder / "dogs") / "chat_template.jinja").write_text("woof")
    with served(engine, adapter_folder=folder, template=ChatTemplate("theirs", {})) as client:
        for name, said in {"cats": "theirs", "dogs": "woof"}.items():
            load(client, name, name)
            client.post(CHAT, json={**HI, "model": name})
            assert prompt(engine) == said


def test_the_same_tokenizer_is_kept_once(client: TestClient, engine: ScriptedEngine, folder: Path) -> None:
    plain_tokenizer().save(folder / "cats")
    load(client, "cats")
    service: Service = client.app.state.service  # type: ignore[attr-defined]
    assert service.of("x").tokenizer is engine.tokenizer


def test_its_own_ends_end_its_answers(client: TestClient, engine: ScriptedEngine, folder: Path) -> None:
    Tokenizer(byte_level(), {"eos_token": "<|endoftext|>"}).save(folder / "cats")
    load(client, "cats")
    (end,) = plain_tokenizer().encode("<|endoftext|>")
    for more, stops in (({}, (end,)), ({"stop_token_ids": [9]}, (9, end)), ({"ignore_eos": True}, ())):
        client.post(CHAT, json={**HI, "model": "x", "max_tokens": 2, **more})
        assert engine.asked[-1][1].stop_token_ids == stops
        assert prompt(engine).startswith("<|im_start|>user\nhi"), "without a template it speaks as the model does"
    client.post(CHAT, json=HI)
    assert engine.asked[-1][1].stop_token_ids == ()
    engine.script = "Bye<|endoftext|>"
    for path, body in ((CHAT, HI), ("/v1/completions", {"prompt": "a"})):
        for asked, told in (([], None), ([end], end)):
            said = client.post(path, json={**body, "model": "x", "stop_token_ids": asked}).json()["choices"][0]
            assert (said["finish_reason"], said.get("stop_reason")) == ("stop", told)


def test_its_own_defaults_hold_where_a_request_is_silent(engine: ScriptedEngine, folder: Path) -> None:
    write_json(folder / "cats" / "generation_config.json", {"temperature": 0.25, "eos_token_id": 0})
    with served(engine, adapter_folder=folder, defaults={"temperature": 0.5, "top_p": 0.5}) as client:
        load(client, "cats")
        client.post(CHAT, json={**HI, "model": "x"})
        client.post(CHAT, json=HI)
    under, alone = (asked for _, asked in engine.asked)
    assert (under.temperature, under.top_p, under.stop_token_ids) == (0.25, 0.5, (0,))
    assert (alone.temperature, alone.top_p, alone.stop_token_ids) == (0.5, 0.5, ())


def test_another_vocabulary_is_refused(client: TestClient, folder: Path) -> None:
    Tokenizer(byte_level((*CHATML_TOKENS, "<|new|>")), {}).save(folder / "cats")
    assert "merge it (`intaglio merge`)" in refusal(load(client, "cats"))


def test_vectors_are_made_under_it(client: TestClient, engine: ScriptedEngine) -> None:
    load(client, "cats")
    assert client.post("/v1/embeddings", json={"input": "a", "model": "x"}).json()["model"] == "x"
    client.post("/v1/embeddings", json={"input": "a"})
    assert engine.under == ["x", None]


def test_the_log_names_the_adapter(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    load(client, "cats")
    with caplog.at_level(logging.INFO, "intaglio"):
        client.post(CHAT, json={**HI, "model": "x"})
        client.post(CHAT, json={**HI, "model": "x", "n": 10**6})
        client.post(CHAT, json=HI)
    lines = [record.getMessage() for record in caplog.records if CHAT in record.getMessage()]
    assert [line.endswith(" s under x") for line in lines] == [True, True, False]
