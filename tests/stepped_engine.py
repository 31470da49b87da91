"""An engine without a model, for tests of what stands around one: it counts on from the last token of the prompt.

Run as a program it is the engine of a process of its own, as `intaglio.serving.worker` is.
"""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from intaglio.engine.interface import EngineStats, Output
from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.serving.messages import Launch
from intaglio.serving.worker import main

__all__ = ["POISON", "SteppedToy"]

POISON = 666
"""A prompt with this token kills the engine that steps on it."""


@dataclass
class _Running:
    prompt: list[int]
    params: SamplingParams
    made: int = 0
    begun: float | None = None


@dataclass
class SteppedToy:
    """One token a step for every choice: the prompt's last, plus one, plus two, ...; block = one request.

    Attributes:
        pause: seconds a step takes.
        max_model_len: of a prompt and its answer.
    """

    pause: float = 0.0
    max_model_len: int = 64
    blocks: int = 256
    requests: dict[str, _Running] = field(default_factory=dict)
    prompt_tokens: int = 0
    generated_tokens: int = 0

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
    ) -> None:
        """See `SteppedEngine`."""
        if len(prompt_ids) >= self.max_model_len:
            raise UserError(f"{len(prompt_ids)} tokens do not fit into {self.max_model_len}", where="prompt")
        self.prompt_tokens += len(prompt_ids)
        self.requests[request_id] = _Running(list(prompt_ids), params)

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
        token = running.prompt[-1] + running.made
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

    def embed(self, prompts: Sequence[Sequence[int]], *, pooling: Any = "mean", normalize: bool = True) -> Any:
        """See `SteppedEngine`; the vectors say what was asked for."""
        return np.array([[len(prompt), pooling == "last", normalize] for prompt in prompts], dtype=float)

    def score(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """See `SteppedEngine`."""
        if not all(prompts):
            raise UserError("an empty prompt has no score")
        return [float(sum(prompt)) for prompt in prompts]


def _build(launch: Launch) -> SteppedToy:
    if launch.model != "toy":
        raise UserError("there is no such model", where=launch.model, mend="take toy")
    return SteppedToy(pause=float(os.environ.get("TOY_PAUSE", "0.001")))


if __name__ == "__main__":
    main(_build)
