"""Run state: everything that a step depends on, as safetensors and JSON. Never a pickle.

checkpoints/step-00000120/
    weights.safetensors      fp32 masters by name
    optimizer.safetensors    moments by "optimizer.name.moment"
    rng.safetensors          torch's generator
    objective.safetensors    what the objective remembers, if it does
    stream.safetensors       what the stream has at hand, if it makes its batches itself
    state.json               step, tokens seen, data cursor, best result

Where many ranks train, they write together (see `parallel.checkpoint`); either kind resumes the other's.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from intaglio.errors import UserError
from intaglio.files import read_json, whole_directory, write_json
from intaglio.parallel.moments import OBJECTIVE, STREAM, moments_of, take_moments
from intaglio.training.objectives.objective import Stateful
from intaglio.training.stepping.master import MasterWeights

if TYPE_CHECKING:
    from intaglio.parallel.checkpoint import SavesTogether

__all__ = ["Buffered", "last_checkpoint", "load_objective", "load_state", "load_stream", "prune", "save_state"]

Optimizers = list[torch.optim.Optimizer]

_RNG: Final = "rng"


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
    together: "SavesTogether | None" = None,
    then: Callable[[Path], None] = lambda path: None,
) -> Path:
    """Writes the checkpoint of `step` beside, then renames; a kill at any moment leaves the one before.

    Args:
        run: the run's folder.
        step: steps done.
        masters, optimizers: what is saved as tensors.
        state: everything else, plain data.
        objective, stream: saved too, if they remember anything, or have anything at hand.
        together: how all ranks write; None where there is one.
        then: called with the checkpoint's folder when it stands, on the first rank; perhaps by a thread, see
            `SavesTogether`.
    """
    path = run / "checkpoints" / f"step-{step:08d}"
    remembered = {f"{OBJECTIVE}{n}": t for n, t in objective.state().items()} if isinstance(objective, Stateful) else {}
    at_hand = stream.tensors() if isinstance(stream, Buffered) else {}
    if together is not None:
        shared = {**remembered, **{f"{STREAM}{name}": tensor for name, tensor in at_hand.items()}}
        own = {_RNG: torch.get_rng_state()}
        together.save(path, masters.masters, optimizers, {"step": step, **state}, own, shared, lambda: then(path))
        return path
    with whole_directory(path) as beside:
        save_file({name: p.detach() for name, p in masters.masters.items()}, beside / "weights.safetensors")
        save_file(moments_of(masters.masters, optimizers), beside / "optimizer.safetensors")
        save_file({"torch": torch.get_rng_state()}, beside / "rng.safetensors")
        if isinstance(objective, Stateful):
            save_file(remembered, beside / "objective.safetensors")
        if isinstance(stream, Buffered):
            save_file(at_hand, beside / "stream.safetensors")
        write_json(beside / "state.json", {"step": step, **state})
    then(path)
    return path


def load_state(path: Path, masters: MasterWeights, optimizers: Optimizers) -> dict[str, Any]:
    """Puts a checkpoint back and returns its plain data.

    Raises:
        UserError: the checkpoint is damaged or of another model.
    """
    state: dict[str, Any] = read_json(path / "state.json")
    try:
        if _of_many(path):
            _load_together(path, masters, optimizers)
        else:
            masters.load(load_file(path / "weights.safetensors"))
            take_moments(masters.masters, optimizers, load_file(path / "optimizer.safetensors"))
            torch.set_rng_state(load_file(path / "rng.safetensors")["torch"])
    except Exception as error:
        raise UserError(
            f"cannot resume: {error}", where=str(path), mend="remove it to resume the one before"
        ) from error
    return state


def load_objective(path: Path, objective: object) -> None:
    """Gives an objective back what it remembered."""
    if not isinstance(objective, Stateful):
        return
    if _of_many(path):
        from intaglio.parallel.checkpoint import read_together

        tensors = {f"{OBJECTIVE}{name}": tensor.clone() for name, tensor in objective.state().items()}
        read_together(path, tensors)
    else:
        tensors = load_file(path / "objective.safetensors")
    objective.load_state({name.removeprefix(OBJECTIVE): tensor for name, tensor in tensors.items()})


def load_stream(path: Path, stream: object) -> None:
    """Gives a stream back what it had at hand; its plain state is there already."""
    if not isinstance(stream, Buffered):
        return
    if (path / "stream.safetensors").exists():
        stream.load_tensors(load_file(path / "stream.safetensors"))
        return
    from intaglio.parallel.checkpoint import shard_files
    from intaglio.parallel.shards import Shards

    shards = Shards(shard_files(path))
    names = [name for name in shards.shapes if name.startswith(STREAM)]
    stream.load_tensors({name.removeprefix(STREAM): shards.tensor(name) for name in names})


def last_checkpoint(run: Path) -> Path | None:
    """The newest whole checkpoint of a run."""
    found = sorted(path for path in (run / "checkpoints").glob("step-*") if re.fullmatch(r"step-\d+", path.name))
    return found[-1] if found else None


def prune(run: Path, keep: int) -> None:
    """Removes all but the last `keep` checkpoints."""
    for path in sorted((run / "checkpoints").glob("step-*"))[:-keep]:
        shutil.rmtree(path)


def _of_many(path: Path) -> bool:
    """Whether many ranks have written it or many are to read it."""
    return (path / "shards").is_dir() or (dist.is_available() and dist.is_initialized())


def _load_together(path: Path, masters: MasterWeights, optimizers: Optimizers) -> None:
    from intaglio.parallel.checkpoint import load_together, own_of

    load_together(path, masters.masters, optimizers)
    masters.publish()
    own = own_of(path)
    if own is not None:
        torch.set_rng_state(own[_RNG])
