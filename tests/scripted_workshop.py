"""A workshop without models: what answers can read a passage, and writes a format once it was trained to."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from intaglio.advice.library import Library
from intaglio.advice.prompts import Messages
from intaglio.advice.roads import Road
from intaglio.advice.speaker import Reply
from intaglio.advice.task import TaskSpec, read_sides

__all__ = ["HashEmbedder", "ScriptedWorkshop", "facts", "formats"]

_MONTHS = "January February March April May June July August September October November December".split()
_SECONDS = {"lora": 10.0, "qlora": 15.0, "full": 30.0}


def facts(rows: int) -> list[dict[str, str]]:
    """Capitals that nobody can know."""
    names = [
        f"{first}{second}" for first in ("Al", "Be", "Co", "Du") for second in ("ria", "via", "nia", "land", "stan")
    ]
    pairs = [(name, hashlib.sha1(name.encode()).hexdigest()[:6]) for name in names]
    return [
        {"prompt": f"What is the capital of {name}?", "completion": city, "said": f"The capital of {name} is {city}."}
        for name, city in pairs[:rows]
    ]


def formats(rows: int) -> list[dict[str, str]]:
    """Dates, and as a machine wants them."""
    days = [(day, month) for month in range(12) for day in (3, 17)][:rows]
    return [
        {
            "prompt": f"{day} {_MONTHS[month]}",
            "completion": f"{month + 1:02}/{day:02}",
            "said": f"A day: {_MONTHS[month]}.",
        }
        for day, month in days
    ]


class HashEmbedder:
    """Vectors of words by their hash: texts with words in common are near."""

    name, dimension = "hashes", 64

    def embed(self, texts: Sequence[str], *, query: bool) -> np.ndarray:
        """See `Embedder`."""
        vectors = np.array([self._sum(text) for text in texts], np.float32).reshape(-1, self.dimension)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def _sum(self, text: str) -> np.ndarray:
        words = re.findall(r"\w+", text.lower()) or ["nothing"]
        seeds = (int.from_bytes(hashlib.sha1(word.encode()).digest()[:4], "little") for word in words)
        return np.sum([np.random.default_rng(seed).normal(size=self.dimension) for seed in seeds], axis=0)


class ScriptedSpeaker:
    """Copies the capital from a passage, if there is one; writes dates once it was trained, or saw three examples."""

    def __init__(self, trained: bool, asked: list[Messages]) -> None:
        self._trained, self._asked = trained, asked

    def count(self, text: str) -> int:
        """Words."""
        return len(text.split())

    def answer(self, asked: Sequence[Messages]) -> list[Reply]:
        """See `Speaker`."""
        self._asked.extend(asked)
        return [self._reply(messages) for messages in asked]

    def _reply(self, messages: Messages) -> Reply:
        text = str(messages[-1]["content"])
        made = self._capital(text) if "capital" in text else self._date(text, len(messages) // 2)
        return Reply(made, sum(self.count(message["content"]) for message in messages), self.count(made))

    def _capital(self, text: str) -> str:
        name = re.findall(r"capital of (\w+)\?", text)[-1]
        found = re.search(rf"The capital of {name} is (\w+)\.", text)
        return f"It is {found[1]}." if found else "I do not know."

    def _date(self, text: str, shots: int) -> str:
        day, month = text.split("\n")[-1].split()
        number = f"{_MONTHS.index(month) + 1:02}/{int(day):02}"
        return number if self._trained or (shots == 3 and month.endswith("y")) else f"The {day}th of {month}."


class ScriptedWorkshop:
    """See `Workshop`; keeps what was asked and what was trained on, and is interrupted before one road's training."""

    def __init__(self, task: TaskSpec, folder: Path, stops_at: str = "") -> None:
        self.task, self.sides, self._folder, self._stops_at = task, read_sides(task), folder, stops_at
        self.asked: list[Messages] = []
        self.rows: dict[str, list[tuple[Messages, str]]] = {}

    @property
    def library(self) -> Library:
        """See `Workshop`."""
        return Library(self.task, self.sides, self._folder, HashEmbedder)

    def base(self) -> ScriptedSpeaker:
        """See `Workshop`."""
        return ScriptedSpeaker(False, self.asked)

    def train(self, road: Road, rows: Sequence[tuple[Messages, str]]) -> float:
        """See `Workshop`."""
        if road.name == self._stops_at:
            raise KeyboardInterrupt
        self.rows[road.name] = list(rows)
        return _SECONDS[road.training]

    def trained(self, road: Road) -> ScriptedSpeaker:
        """See `Workshop`."""
        return ScriptedSpeaker(True, self.asked)
