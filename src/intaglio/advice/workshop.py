"""What the roads of a task are walked with: its rows, an index, models that answer, and what trains them."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from intaglio.adapters.merge import load_merged
from intaglio.advice.library import Library
from intaglio.advice.prompts import Messages
from intaglio.advice.roads import Road
from intaglio.advice.speaker import LocalSpeaker, Speaker
from intaglio.advice.task import Sides, TaskSpec
from intaglio.engine.llm import LLM
from intaglio.files import write_json_lines
from intaglio.retrieval.embedder import DEFAULT_EMBEDDER, load_embedder
from intaglio.specs import validate
from intaglio.training.log import read_log, step_seconds
from intaglio.training.recipe import Recipe
from intaglio.training.run import finish

__all__ = ["LocalWorkshop", "Say", "Workshop"]

Say = Callable[[str], None]

_RECIPE = {
    "packing": "best_fit",
    "max_length": 1024,
    "micro_batch": 1,
    "steps": 60,
    "validation": 0.0,
    "optimizer": {"learning_rate": 5e-4, "weight_decay": 0.0},
    "schedule": {"kind": "linear", "warmup": 5, "final": 0.0},
    "evaluate_every": 0,
    "save_every": 20,
    "keep": 1,
}
"""What all training has in common, where the task does not say it: an equal number of steps of equal length."""

_TRAINED: dict[str, dict[str, Any]] = {
    "lora": {"adapter": {"r": 16}},
    "qlora": {"adapter": {"r": 16}, "quantization": {}},
    "full": {"optimizer": {"learning_rate": 1e-4, "weight_decay": 0.0}},
}


class Workshop(Protocol):
    """See above; a test has one without models."""

    task: TaskSpec
    sides: Sides

    @property
    def library(self) -> Library:
        """The index, made when it is first asked for."""

    def base(self) -> Speaker:
        """The model as it is."""

    def train(self, road: Road, rows: Sequence[tuple[Messages, str]]) -> float:
        """Trains on conversations and their answers, or goes on with it; seconds that it took."""

    def trained(self, road: Road) -> Speaker:
        """What `train` has made of the model."""


class LocalWorkshop:
    """Everything in this process and in one folder; see `Workshop`.

    Args:
        task: what is measured.
        sides: its rows.
        folder: keeps index, rows and runs.
        say: told how far it is.

    Raises:
        UserError: the task's `training` is no part of a recipe; or see `load_model`, `Library`.
    """

    def __init__(self, task: TaskSpec, sides: Sides, folder: Path, say: Say) -> None:
        self.task, self.sides, self._folder, self._say = task, sides, folder, say

    @cached_property
    def library(self) -> Library:
        """See `Workshop`."""
        return Library(self.task, self.sides, self._folder, lambda: load_embedder(DEFAULT_EMBEDDER, say=self._say))

    def base(self) -> Speaker:
        """See `Workshop`."""
        return self._speaker(self.task.model)

    def train(self, road: Road, rows: Sequence[tuple[Messages, str]]) -> float:
        """See `Workshop`.

        Raises:
            KeyboardInterrupt: a signal ended it; what it did is saved.
        """
        run = self._run(road)
        file = self._folder / "rows" / f"{run.name}.jsonl"
        if not file.exists():
            write_json_lines(file, map(_conversation, rows))
        finish(self._recipe(road, file), run, say=self._say)
        return sum(step_seconds(read_log(run / "log.jsonl")))

    def trained(self, road: Road) -> Speaker:
        """See `Workshop`."""
        run = self._run(road)
        if road.training == "full":
            return self._speaker(run / "model")
        model, tokenizer = load_merged(self.task.model, run / "adapter")
        return self._speaker(self.task.model, loaded=model, tokenizer=tokenizer)

    def _speaker(self, model: str | Path, **more: Any) -> LocalSpeaker:
        return LocalSpeaker(LLM(model, **more), self.task.max_tokens, self._say)

    def _run(self, road: Road) -> Path:
        return self._folder / "runs" / road.name.replace(" ", "-")

    def _recipe(self, road: Road, rows: Path) -> Recipe:
        fields = {**_RECIPE, **_TRAINED[road.training], **self.task.training}
        named = {"model": self.task.model, "data": str(rows), "seed": self.task.seed}
        recipe: Recipe = validate(Recipe, {**fields, **named}, "training")
        return recipe


def _conversation(row: tuple[Messages, str]) -> dict[str, Any]:
    asked, answer = row
    return {"messages": [*asked, {"role": "assistant", "content": answer}]}
