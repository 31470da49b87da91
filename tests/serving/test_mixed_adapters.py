"""Merged or not, the API says the same: several adapters and the model itself in one batch, and each merged alone."""

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from intaglio.adapters.merge import load_merged
from intaglio.engine.llm import LLM
from intaglio.files import write_json
from intaglio.serving import worker
from intaglio.serving.messages import Launch
from intaglio.serving.remote import LocalEngine
from seam_doors import SMALL, local_api, make_adapter
from served_model import Served, served_model
from toy_llms import toy_tokenizer

PROMPTS = ("the user says hello to the assistant", "hi", "42 answers and thanks for them", "你好")
OWN_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}<|im_end|>"


@pytest.fixture(scope="module")
def adapters(toy_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two of unlike shape; the second brings a chat template, and trains the output matrix and a row for a token."""
    folder = tmp_path_factory.mktemp("adapters")
    own = toy_tokenizer().with_template(OWN_TEMPLATE)
    wide: Any = {"r": 5, "lora_alpha": 7, "use_rslora": True, "trainable_token_indices": (70, 71)}
    return {
        "x": make_adapter(toy_dir, folder / "x", 1, r=2, lora_alpha=6, target_modules=("q_proj", "down_proj")),
        "y": make_adapter(toy_dir, folder / "y", 2, own, **wide),
    }


async def ask(client: httpx2.AsyncClient, name: str | None) -> list[dict[str, Any]]:
    """What a model says to everything, all at once: the choices of texts, and of conversations."""
    greedy = {"temperature": 0, "max_tokens": 12, "return_token_ids": True, "model": name}
    bodies: list[tuple[str, Any]] = [
        ("completions", {"prompt": list(PROMPTS), "logprobs": 2, "prompt_logprobs": 0, **greedy}),
        ("completions", {"prompt": PROMPTS[0], "n": 2, "seed": 3, **greedy, "temperature": 1}),
        *(("chat/completions", {**chat(text), "logprobs": True, "top_logprobs": 2, **greedy}) for text in PROMPTS),
        ("embeddings", {"input": list(PROMPTS), "model": name}),
    ]
    answers = await asyncio.gather(*(client.post(f"/v1/{path}", json=body) for path, body in bodies))
    assert {answer.status_code for answer in answers} == {200}, [answer.text for answer in answers]
    return [answer.json() for answer in answers]


def chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def ids(said: list[dict[str, Any]]) -> list[list[int]]:
    return [choice["token_ids"] for answer in said for choice in answer.get("choices", [])]


def numbers(told: Any) -> list[float]:
    """Every log-probability of an answer, in order."""
    if isinstance(told, dict):
        return [number for value in told.values() for number in numbers(value)]
    if isinstance(told, list):
        return [number for value in told for number in numbers(value)]
    return [told] if isinstance(told, float) else []


def words(told: Any) -> Any:
    """The same answer without its numbers and without what tells one request from another."""
    apart = ("id", "created", "model", "prompt_tokens_details")
    if isinstance(told, dict):
        return {key: words(value) for key, value in told.items() if key not in apart}
    if isinstance(told, list):
        return [words(value) for value in told]
    return None if isinstance(told, float) else told


def test_in_one_batch_each_says_what_it_says_merged_and_alone(toy_dir: Path, adapters: dict[str, Path]) -> None:
    names = ["x", None, "y"]

    async def together() -> list[list[dict[str, Any]]]:
        built, read = worker._build(Launch(str(toy_dir), "float32", "cpu", None, SMALL))
        engine = LocalEngine(built, read, {name: str(folder) for name, folder in adapters.items()})
        async with local_api(engine, toy_tokenizer(), **adapters) as client:
            first = await asyncio.gather(*(ask(client, name) for name in names))
            again = await asyncio.gather(*(ask(client, name) for name in reversed(names)))  # from the prefix cache
            assert words(again[::-1]) == words(first)
            return first

    async def alone(name: str | None) -> list[dict[str, Any]]:
        loaded, tokenizer = load_merged(toy_dir, adapters[name], dtype="float32") if name else (None, None)
        llm = LLM(toy_dir, dtype="float32", config=SMALL, loaded=loaded, tokenizer=tokenizer)
        async with local_api(LocalEngine(llm.engine), llm.tokenizer) as client:
            return await ask(client, None)

    found = asyncio.run(together())
    for name, said in zip(names, found, strict=True):
        expected = asyncio.run(alone(name))
        assert words(said) == words(expected)
        assert numbers(said) == pytest.approx(numbers(expected), abs=1e-4)
        assert {answer["model"] for answer in said} == {name or "base"}
    assert len({str(ids(said)) for said in found}) == 3, "the adapters change nothing"


def test_what_an_operator_should_know_of_an_adapter_is_in_the_log(
    toy_dir: Path, adapters: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(adapters["x"], tmp_path / "x")
    write_json(folder / "intaglio.json", {"quantization": {}})  # as QLoRA leaves it
    _, read = worker._build(Launch(str(toy_dir), "float32", "cpu", None, SMALL))
    read(str(folder))
    assert "trained beside" in caplog.text


@pytest.mark.prove
def test_a_server_keeps_its_adapters_over_the_death_of_its_engine(
    toy_dir: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    folder = adapters["y"].parent
    options = ["--adapter", f"x={adapters['x']}", "--adapter-folder", str(folder), "--threads", "1"]
    options += ["--dtype", "float32", "--served-model-name", "base", "--num-blocks", "64"]
    with served_model(toy_dir, *options, log=tmp_path / "log") as server:
        assert post(server, "load_lora_adapter", lora_name="y", lora_path="y").status_code == 200
        before = [made(server, name) for name in ("x", "y", "base")]
        assert len({str(one) for one in before}) == 3
        (engine,) = psutil.Process(server.process.pid).children()
        engine.kill()
        while not is_back(server, engine.pid):
            time.sleep(0.1)
        assert [made(server, name) for name in ("x", "y", "base")] == before
        assert post(server, "unload_lora_adapter", lora_name="x").status_code == 200
        assert post(server, "completions", prompt="a", model="x").status_code == 404
        assert server.end() == 0
        assert "Traceback" not in server.log.read_text()


def post(server: Served, route: str, **fields: Any) -> httpx2.Response:
    return httpx2.post(f"{server.url}/v1/{route}", json=fields, timeout=60)


def is_back(server: Served, old: int) -> bool:
    """Whether another engine answers than the one of this number."""
    running = [process.pid for process in psutil.Process(server.process.pid).children()]
    return running not in ([], [old]) and httpx2.get(f"{server.url}/health").status_code == 200


def made(server: Served, name: str) -> list[int]:
    """The ids that a model makes, greedily."""
    asked = post(server, "completions", prompt="hello", model=name, temperature=0, max_tokens=8, return_token_ids=True)
    token_ids: list[int] = asked.json()["choices"][0]["token_ids"]
    return token_ids
