"""The API for tests: in this process, or behind a real socket."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.testclient import TestClient

from intaglio.serving.app import create_app
from intaglio.serving.service import Service
from intaglio.text.tokenizer import Tokenizer
from scripted_engine import ScriptedEngine
from toy_tokenizers import byte_level

__all__ = ["events", "plain_tokenizer", "qwen_tokenizer", "served", "socket_server"]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@lru_cache
def plain_tokenizer(template: str | None = CHATML) -> Tokenizer:
    """Byte-level, with a ChatML template that has no place for tools; no BOS."""
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return Tokenizer(byte_level(), names, chat_templates=template)


def qwen_tokenizer() -> Tokenizer:
    """The same with Qwen's template, which has a place for tools."""
    from intaglio.text.chat_templates import load_template

    return plain_tokenizer(load_template("qwen"))


@contextmanager
def served(
    engine: ScriptedEngine, api_keys: tuple[str, ...] = (), cors: tuple[str, ...] = (), **more: Any
) -> Iterator[TestClient]:
    """A client of the API over `engine`, without a socket."""
    service = Service(engine, engine.tokenizer, ("toy", "alias"), **more)
    with TestClient(create_app(service, api_keys=api_keys, cors_origins=cors), raise_server_exceptions=False) as client:
        yield client


@contextmanager
def socket_server(app: FastAPI) -> Iterator[str]:
    """The address of a real server in a thread of this process."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
    started = threading.Event()

    async def run() -> None:
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        started.set()
        await task

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    assert started.wait(30)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)


def events(text: str) -> list[Any]:
    """The data of a stream's events; the last is `[DONE]`."""
    lines = [block.removeprefix("data: ") for block in text.split("\n\n") if block]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]
