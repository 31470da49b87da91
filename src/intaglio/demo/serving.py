"""The stages that serve: a conversation through openai-python, and a load test."""

import time
from pathlib import Path
from typing import Any, Final

from intaglio.demo.stage import Desk, Found
from intaglio.serving.beside import served

__all__ = ["AT_ONCE", "NAME", "answered", "load_test", "talk"]

NAME: Final = "smollm2-demo"
_CONVERSATION: Final = ("Name the capital of France.", "What is it famous for? Answer in one sentence.")
AT_ONCE: Final = 8


def talk(desk: Desk) -> Found:
    """A conversation of two turns with the model as it was pulled, over HTTP, by a client that knows nothing of us."""
    from openai import OpenAI

    messages: list[Any] = []
    turns = []
    with served(desk.found["pull"]["path"], "--served-model-name", NAME) as address:
        client = OpenAI(base_url=f"{address}/v1", api_key="none")
        for question in _CONVERSATION:
            messages.append({"role": "user", "content": question})
            text, first = answered(client, messages)
            messages.append({"role": "assistant", "content": text})
            turns.append({"question": question, "answer": text, "first_token_s": first})
    return {"turns": turns}


def answered(client: Any, messages: list[Any]) -> tuple[str, float]:
    """The whole text, and the seconds to its first piece."""
    start, first, text = time.perf_counter(), 0.0, ""
    stream = client.chat.completions.create(model=NAME, messages=messages, temperature=0, max_tokens=48, stream=True)
    for event in stream:
        piece = event.choices[0].delta.content if event.choices else None
        if piece:
            first = first or time.perf_counter() - start
            text += piece
    return text, first


def load_test(desk: Desk) -> Found:
    """Twenty seconds of eight conversations at once with the trained model, about the headlines of the exam."""
    from intaglio.evaluation.load.arrivals import ClosedLoop
    from intaglio.evaluation.load.lengths import Lengths
    from intaglio.evaluation.load.prompts import FilePrompts, read_prompts
    from intaglio.evaluation.load.run import Plan, measure
    from intaglio.evaluation.load.target import Target

    prompts = FilePrompts(read_prompts(Path(desk.found["pull"]["exam"])), Lengths.fixed(32))
    plan = Plan((ClosedLoop(AT_ONCE),), prompts, duration=desk.sized(20, 6))
    with served(desk.found["merge"]["path"], "--served-model-name", NAME) as address:
        (measured,) = measure(Target(address, fields={"ignore_eos": True}), plan)
    return {"concurrency": AT_ONCE, **measured.summary}
