"""Run state: everything that a step depends on, as safetensors and JSON. Never a pickle.

checkpoints/step-00000120/
    weights.safetensors      fp32 masters by name
    optimizer.safetensors    moments by "index.name"
    rng.safetensors          torch's generator
    objective.safetensors    what the objective remembers, if it does
    stream.safetensors       what the stream has at hand, if it makes its batches itself
    state.json               step, tokens seen, data cursor, optimizer's scalars, best result
"""

import re
import shutil
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from intaglio.errors import UserError
from intaglio.files import read_json, whole_directory, write_json
from intaglio.training.master import MasterWeights
from intaglio.training.objectives.objective import Stateful

__all__ = ["Buffered", "last_checkpoint", "load_objective", "load_state", "load_stream", "prune", "save_state"]

Optimizers = list[torch.optim.Optimizer]


@runtime_checkable
class Buffered(Protocol):
    """A stream with tensors at hand, such as a rollout that is learned from, which a checkpoint must hold."""

    def tensors(self) -> dict[str, Tensor]:
        """What it has at hand, by name."""

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Goes on with what a stream had at hand; its `load_state` was called before."""


def save_state(
    run: Path,
    step: int,
    masters: MasterWeights,
    optimizers: Optimizers,
    state: dict[str, Any],
    objective: object = None,
    stream: object = None,
) -> Path:
    """Writes the checkpoint of `step` beside, then renames; a kill at any moment leaves the one before.

    Args:
        run: the run's folder.
        step: steps done.
        masters, optimizers: what is saved as tensors.
        state: everything else, plain data.
        objective, stream: saved too, if they remember anything, or have anything at hand.
    """
    path = run / "checkpoints" / f"step-{step:08d}"
    tensors, scalars = _optimizer_tensors(optimizers)
    with whole_directory(path) as beside:
        save_file({name: p.detach() for name, p in masters.masters.items()}, beside / "weights.safetensors")
        save_file(tensors, beside / "optimizer.safetensors")
        save_file({"torch": torch.get_rng_state()}, beside / "rng.safetensors")
        if isinstance(objective, Stateful):
            save_file(objective.state(), beside / "objective.safetensors")
        if isinstance(stream, Buffered):
            save_file(stream.tensors(), beside / "stream.safetensors")
        write_json(beside / "state.json", {"step": step, "optimizer": scalars, **state})
    return path


def load_state(path: Path, masters: MasterWeights, optimizers: Optimizers) -> dict[str, Any]:
    """Puts a checkpoint back and returns its plain data.

    Raises:
        UserError: the checkpoint is damaged or of another model.
    """
    state: dict[str, Any] = read_json(path / "state.json")
    try:
        masters.load(load_file(path / "weights.safetensors"))
        _load_optimizers(optimizers, load_file(path / "optimizer.safetensors"), state["optimizer"])
        torch.set_rng_state(load_file(path / "rng.safetensors")["torch"])
    except Exception as error:
        raise UserError(
            f"cannot resume: {error}", where=str(path), mend="remove it to resume the one before"
        ) from error
    return state


def load_objective(path: Path, objective: object) -> None:
    """Gives an objective back what it remembered."""
    if isinstance(objective, Stateful):
        objective.load_state(load_file(path / "objective.safetensors"))


def load_stream(path: Path, stream: object) -> None:
    """Gives a stream back what it had at hand; its plain state is there already."""
    if isinstance(stream, Buffered):
        stream.load_tensors(load_file(path / "stream.safetensors"))


def last_checkpoint(run: Path) -> Path | None:
    """The newest whole checkpoint of a run."""
    found = sorted(path for path in (run / "checkpoints").glob("step-*") if re.fullmatch(r"step-\d+", path.name))
    return found[-1] if found else None


def prune(run: Path, keep: int) -> None:
    """Removes all but the last `keep` checkpoints."""
    for path in sorted((run / "checkpoints").glob("step-*"))[:-keep]:
        shutil.rmtree(path)


def _optimizer_tensors(optimizers: Optimizers) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    tensors: dict[str, Tensor] = {}
    for number, optimizer in enumerate(optimizers):
        for index, moments in optimizer.state_dict()["state"].items():
            tensors |= {f"{number}.{index}.{name}": torch.as_tensor(value) for name, value in moments.items()}
    return tensors, [{"groups": len(optimizer.param_groups)} for optimizer in optimizers]


def _load_optimizers(optimizers: Optimizers, tensors: dict[str, Tensor], scalars: list[dict[str, Any]]) -> None:
    for number, optimizer in enumerate(optimizers):
        assert len(optimizer.param_groups) == scalars[number]["groups"], "the checkpoint has another optimizer"
        plain = optimizer.state_dict()
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            owner, index, name = key.split(".", 2)
            if int(owner) == number:
                state.setdefault(int(index), {})[name] = value
        optimizer.load_state_dict({"state": state, "param_groups": plain["param_groups"]})
