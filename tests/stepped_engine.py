"""An engine without a model, for tests of what stands around one: it counts on from the last token of the prompt.

Run as a program it is the engine of a process of its own, as `intaglio.serving.worker` is.
"""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from intaglio.engine.interface import EngineStats, Output
from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.serving.messages import Launch
from intaglio.serving.worker import ReadAdapter, main

__all__ = ["POISON", "SteppedToy", "read_step"]

POISON = 666
"""A prompt with this token kills the engine that steps on it."""


@dataclass
class _Running:
    prompt: list[int]
    params: SamplingParams
    step: int = 1
    made: int = 0
    begun: float | None = None


@dataclass
class SteppedToy:
    """One token a step for every choice: the prompt's last, plus one, plus two, ...; block = one request.

    Attributes:
        pause: seconds a step takes.
        max_model_len: of a prompt and its answer.
        adapters: what is added instead of one under each of them.
    """

    pause: float = 0.0
    max_model_len: int = 64
    blocks: int = 256
    requests: dict[str, _Running] = field(default_factory=dict)
    prompt_tokens: int = 0
    generated_tokens: int = 0
    adapters: dict[str, int] = field(default_factory=dict)

    @property
    def has_work(self) -> bool:
        """See `SteppedEngine`."""
        return bool(self.requests)

    def add(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        salt: bytes = b"",
        adapter: str | None = None,
    ) -> None:
        """See `SteppedEngine`."""
        if len(prompt_ids) >= self.max_model_len:
            raise UserError(f"{len(prompt_ids)} tokens do not fit into {self.max_model_len}", where="prompt")
        self.prompt_tokens += len(prompt_ids)
        self.requests[request_id] = _Running(list(prompt_ids), params, self._step_of(adapter))

    def abort(self, request_id: str) -> None:
        """See `SteppedEngine`."""
        self.requests.pop(request_id, None)

    def step(self) -> list[Output]:
        """See `SteppedEngine`."""
        time.sleep(self.pause)
        outputs = [output for name, running in self.requests.items() for output in self._next(name, running)]
        self.requests = {name: running for name, running in self.requests.items() if not self._over(running)}
        return outputs

    def _next(self, name: str, running: _Running) -> list[Output]:
        if POISON in running.prompt:
            os.kill(os.getpid(), signal.SIGKILL)
        running.begun = running.begun or time.monotonic()
        running.made += 1
        token = running.prompt[-1] + running.made * running.step
        self.generated_tokens += running.params.n
        reason = "length" if self._over(running) else None
        return [
            Output(name, choice, [token], f"{token} ", None, None, reason, None, len(running.prompt), 0, running.begun)
            for choice in range(running.params.n)
        ]

    def _over(self, running: _Running) -> bool:
        room = self.max_model_len - len(running.prompt)
        return running.made >= min(running.params.max_tokens or room, room)

    def stats(self) -> EngineStats:
        """See `SteppedEngine`."""
        return EngineStats(
            running=len(self.requests),
            free_blocks=self.blocks - len(self.requests),
            num_blocks=self.blocks,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            computed_tokens=self.prompt_tokens + self.generated_tokens,
        )

    def embed(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        pooling: Any = "mean",
        normalize: bool = True,
        adapter: str | None = None,
    ) -> Any:
        """See `SteppedEngine`; the vectors say what was asked for."""
        return np.array(
            [[len(prompt) * self._step_of(adapter), pooling == "last", normalize] for prompt in prompts], dtype=float
        )

    def score(self, prompts: Sequence[Sequence[int]], *, adapter: str | None = None) -> list[float]:
        """See `SteppedEngine`."""
        if not all(prompts):
            raise UserError("an empty prompt has no score")
        return [float(sum(prompt) * self._step_of(adapter)) for prompt in prompts]

    def load_adapter(self, name: str, updates: int) -> None:
        """See `SteppedEngine`."""
        if name in self.adapters:
            raise UserError(f"there is an adapter {name!r} already")
        self.adapters[name] = updates

    def _step_of(self, adapter: str | None) -> int:
        if adapter is not None and adapter not in self.adapters:
            raise UserError(f"no adapter {adapter!r}")
        return 1 if adapter is None else self.adapters[adapter]

    def unload_adapter(self, name: str) -> None:
        """See `SteppedEngine`; what runs has its step."""
        if name not in self.adapters:
            raise UserError(f"no adapter {name!r}")
        del self.adapters[name]


def read_step(directory: str) -> int:
    """An adapter of the toy: a directory with a number in the file `step`.

    Raises:
        UserError: there is none.
    """
    file = Path(directory) / "step"
    if not file.is_file():
        raise UserError("no adapter for a toy", where=directory)
    return int(file.read_text())


def _build(launch: Launch) -> tuple[SteppedToy, ReadAdapter]:
    if launch.model != "toy":
        raise UserError("there is no such model", where=launch.model, mend="take toy")
    return SteppedToy(pause=float(os.environ.get("TOY_PAUSE", "0.001"))), read_step


if __name__ == "__main__":
    main(_build)
