"""`intaglio serve`: what its options come to, in one process; `test_server.py` and the proofs start it for real."""

import json
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from intaglio.engine.interface import EngineConfig
from intaglio.retrieval import embedder
from intaglio.serving.client import EngineUnavailable
from intaglio.serving.messages import Launch
from intaglio.serving.remote import ProcessEngine
from intaglio.serving.server import Server
from intaglio.serving.service import Service
from intaglio.serving.vllm import Handover
from intaglio.text.chat_templates import load_template
from peft_folders import peft_folder
from running import Run
from toy_documents import ToyEmbedder, toy_searcher


@dataclass
class Started:
    """What would have been started."""

    servers: list[Server] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    handovers: list[Handover] = field(default_factory=list)

    @property
    def service(self) -> Service:
        """Of the one server."""
        (server,) = self.servers
        service: Service = server.app.state.service  # type: ignore[attr-defined]
        return service


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Nothing is started, but noted."""
    noted = Started()

    def run(self: Server, sock: socket.socket) -> None:
        sock.close()
        noted.servers.append(self)

    def hand_over(self: Handover) -> None:
        noted.handovers.append(self)
        raise SystemExit(0)

    monkeypatch.setattr(Server, "run", run)
    monkeypatch.setattr(ProcessEngine, "spawn", lambda self: noted.launches.append(self._launch))
    monkeypatch.setattr(Handover, "run", hand_over)
    monkeypatch.delenv("INTAGLIO_API_KEY", raising=False)
    return noted


def test_without_options_it_is_the_model_under_its_name(run: Run, started: Started, toy_dir: Path) -> None:
    assert run("serve", toy_dir, "--port", 0).status == 0
    assert started.launches == [Launch(str(toy_dir), None, "cpu", None, EngineConfig())]
    service = started.service
    assert (service.names, service.root, service.defaults) == ((str(toy_dir),), str(toy_dir), {})
    assert not service.trust_templates
    assert not service.log_prompts
    assert TestClient(started.servers[0].app).get("/metrics").status_code == 200


def test_options_arrive(run: Run, started: Started, toy_dir: Path, tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages[0].content }}!")
    options: list[Any] = ["--served-model-name", "a", "--served-model-name", "b", "--api-key", "k1", "--api-key", "k2"]
    options += ["--threads", 1, "--dtype", "float32", "--max-model-len", 64, "--kv-memory", 0.5, "--block-size", 8]
    options += ["--no-prefix-caching", "--deterministic", "--policy", "priority", "--max-sequences", 3]
    options += ["--max-tokens-per-step", 99, "--chat-template", template, "--max-waiting", 5, "--drain-timeout", 1.5]
    options += ["--pooling", "last", "--cors-origin", "http://page", "--log-prompts", "--weights", "int8"]
    assert run("serve", toy_dir, "--port", 0, *options).status == 0
    config = EngineConfig(
        block_size=8,
        kv_memory_bytes=2**29,
        max_model_len=64,
        max_sequences=3,
        max_tokens_per_step=99,
        prefix_caching=False,
        deterministic=True,
        policy="priority",
        weights="int8",
    )
    assert started.launches == [Launch(str(toy_dir), "float32", "cpu", 1, config)]
    service = started.service
    assert (service.names, service.pooling, service.limits.sequences) == (("a", "b"), "last", 5)
    assert service.log_prompts
    assert service.template is not None
    assert service.template.render([{"role": "user", "content": "hi"}]) == "hi!"
    assert started.servers[0].drain_s == 1.5
    client = TestClient(started.servers[0].app)
    for key, status in [("k1", 200), ("k2", 200), ("k3", 401)]:
        headers = {"Authorization": f"Bearer {key}", "Origin": "http://page"}
        answer = client.get("/metrics", headers=headers)
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == "http://page"


def test_a_template_of_ours_goes_by_its_name(run: Run, started: Started, toy_dir: Path) -> None:
    for options in ([], ["--engine", "vllm"]):
        assert run("serve", toy_dir, "--port", 0, "--chat-template", "qwen", *options).status == 0
    assert started.service.template is not None
    assert "<tools>" in started.service.template.render(
        [{"role": "user", "content": "hi"}], tools=[{"type": "function"}]
    )
    (handover,) = started.handovers
    assert handover.chat_template is not None
    assert handover.chat_template.read_text() == load_template("qwen")
    assert handover.tool_parser == "hermes"
    assert "no chat template 'qwem'" in run("serve", toy_dir, "--port", 0, "--chat-template", "qwem").refusal


def test_the_key_may_come_from_the_environment(
    run: Run, started: Started, toy_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTAGLIO_API_KEY", "k")
    run("serve", toy_dir, "--port", 0)
    assert TestClient(started.servers[0].app).get("/metrics").status_code == 401
    assert TestClient(started.servers[0].app).get("/health").status_code == 503


def test_the_models_own_sampling_is_the_default(run: Run, started: Started, toy_dir: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for file in toy_dir.iterdir():
        (model / file.name).symlink_to(file)
    (model / "generation_config.json").unlink()
    stated = {"temperature": 0.6, "top_p": 0.95, "do_sample": True, "eos_token_id": 2, "bad_words_ids": [[7]]}
    (model / "generation_config.json").write_text(json.dumps(stated))
    run("serve", model, "--port", 0)
    assert started.service.defaults == {"temperature": 0.6, "top_p": 0.95, "forbidden_token_ids": (7,)}


def test_documents_are_opened(
    run: Run, started: Started, toy_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedder, "load_embedder", lambda name: ToyEmbedder())
    toy_searcher(tmp_path).close()
    assert run("serve", toy_dir, "--port", 0, "--rag", tmp_path / "index", "--rag-budget", 700).status == 0
    grounding = started.service.grounding
    assert grounding is not None
    assert (grounding.searcher.index.path, grounding.budget) == (tmp_path / "index", 700)
    assert (tmp_path / "index" / "threshold.json").exists()
    refusal = run("serve", toy_dir, "--port", 0, "--rag-budget", 700).refusal
    assert "--rag-budget: there are no documents" in refusal


def test_adapters_are_named_and_loaded_first(run: Run, started: Started, toy_dir: Path, tmp_path: Path) -> None:
    adapters = {"x": peft_folder(tmp_path / "a=b"), "y-2": peft_folder(tmp_path / "c")}
    given = [word for name, folder in adapters.items() for word in ("--adapter", f"{name}={folder}")]
    assert run("serve", toy_dir, "--port", 0, *given, "--adapter-folder", tmp_path).status == 0
    assert started.service.adapter_folder == tmp_path
    assert {name: adapter.root for name, adapter in started.service.adapters.items()} == {
        name: str(folder) for name, folder in adapters.items()
    }
    assert set(started.servers[0].engine.adapters) == set(adapters)
    run("serve", toy_dir, "--port", 0)
    assert started.servers[1].app.state.service.adapter_folder is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        (["cats"], "--adapter cats: NAME=DIR is expected"),
        (["=cats"], "--adapter =cats: NAME=DIR is expected"),
        (["x="], "--adapter x=: NAME=DIR is expected"),
        (["x=cats", "x=cats"], "there are two adapters 'x'"),
        (["a/b=cats"], "'a/b' cannot be an adapter's name; take letters"),
        (["m=cats"], "'m' is what the model itself is called"),
        (["x=nowhere"], "nowhere: no adapter: there is no adapter_config.json"),
    ],
)
def test_adapters_that_cannot_be_are_one_line(
    run: Run,
    started: Started,
    toy_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: list[str],
    refusal: str,
) -> None:
    peft_folder(tmp_path / "cats")
    monkeypatch.chdir(tmp_path)
    options = [word for one in given for word in ("--adapter", one)]
    assert refusal in run("serve", toy_dir, "--port", 0, "--served-model-name", "m", *options).refusal
    assert not started.servers


def test_a_folder_for_adapters_must_be_there(run: Run, started: Started, toy_dir: Path, tmp_path: Path) -> None:
    refusal = run("serve", toy_dir, "--port", 0, "--adapter-folder", tmp_path / "nowhere").refusal
    assert "--adapter-folder" in refusal
    assert "no folder" in refusal


def test_mistakes_are_one_line(run: Run, started: Started, toy_dir: Path) -> None:
    assert "unknown model 'nothing'" in run("serve", "nothing").refusal
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}: address already in use" in run("serve", toy_dir, "--port", port).refusal
    assert not started.servers


def test_an_engine_that_dies_while_it_loads_is_no_traceback(
    run: Run, started: Started, toy_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: Server, sock: socket.socket) -> None:
        sock.close()
        raise EngineUnavailable("the engine died while it loaded")

    monkeypatch.setattr(Server, "run", die)
    ran = run("serve", toy_dir, "--port", 0)
    assert (ran.status, ran.err) == (1, "intaglio: the engine died while it loaded\n")


def test_vllm_gets_the_same_options(run: Run, started: Started, toy_dir: Path, tmp_path: Path) -> None:
    options = ["--engine", "vllm", "--port", 9, "--max-model-len", 64, "--api-key", "k", "--dtype", "float32"]
    adapters = {"x": str(peft_folder(tmp_path / "x"))}
    assert run("serve", toy_dir, *options, "--adapter", f"x={adapters['x']}").status == 0
    (handover,) = started.handovers
    config, names = EngineConfig(max_model_len=64), (str(toy_dir),)
    more: Any = {"api_keys": ("k",), "dtype": "float32", "adapters": adapters}
    assert handover == Handover(toy_dir, names, config, "127.0.0.1", 9, **more)
    assert not started.launches


@pytest.mark.parametrize(
    "option",
    [["--trust-templates"], ["--pooling", "last"], ["--max-waiting", 7], ["--rag", "i"], ["--adapter-folder", "."]],
)
def test_what_vllm_lacks_is_refused(run: Run, started: Started, toy_dir: Path, option: list[Any]) -> None:
    refusal = run("serve", toy_dir, "--engine", "vllm", *option).refusal
    assert f"{option[0]}: vLLM has no such option" in refusal
