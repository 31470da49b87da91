"""Checkpoints that all ranks of a run write together, by PyTorch's distributed checkpoints (DCP).

step-00000120/
    shards/             safetensors, a file for each rank: its pieces of weights and moments
    rank-00003.safetensors   what is a rank's own, such as its generator
    state.json          plain data, and the sizes of the files above

Everything is keyed by the names of parameters, and the pieces say where they lie, so that any mesh goes on with what
any other wrote, one process with what many wrote and many with what one wrote. There is no pickle in it.

The folder is written beside its place. DCP's own agreement on the end of a save is the barrier: only when every rank
has written does the first one put the folder in its place, so that a rank that dies leaves the checkpoint before.
"""

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from intaglio.errors import UserError
from intaglio.files import put_in_place, read_json, write_json
from intaglio.parallel.moments import MOMENTS, OBJECTIVE, STREAM, moments_of, take_moments
from intaglio.parallel.pickled import METADATA, PickledReader, read_pickled
from intaglio.parallel.shards import Shards, ShardsReader

__all__ = ["SHARDS", "STATE", "SavesTogether", "load_together", "own_of", "read_together", "shard_files"]

_PATIENCE: Final = timedelta(days=1)
"""How long a rank waits for the others' disks: one that dies is noticed at once."""

SHARDS: Final = "shards"
STATE: Final = "state.json"

Optimizers = Sequence[torch.optim.Optimizer]


class SavesTogether:
    """Writes checkpoints; every rank has one and calls it at the same steps.

    Args:
        background: write while training goes on: the tensors are copied to the host's memory, and a thread does the
            rest.
    """

    def __init__(self, background: bool = False) -> None:
        self._background = background
        self._group = dist.new_group(
            backend="gloo", timeout=_PATIENCE
        )  # of its own: a thread's messages must not meet the training's
        self._running: Future[Any] | None = None

    def save(
        self,
        path: Path,
        weights: Mapping[str, Tensor],
        optimizers: Optimizers,
        plain: Mapping[str, Any],
        own: Mapping[str, Tensor] | None = None,
        more: Mapping[str, Tensor] | None = None,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Writes a checkpoint, after the one before it is done.

        Args:
            path: the folder.
            weights: this rank's, by name; a name that several ranks have is one tensor, of which each has a piece or
                all.
            optimizers: of these weights.
            plain: what the first rank writes as JSON.
            own: this rank's own tensors.
            more: what an objective remembers and a stream has at hand, by names that begin with `OBJECTIVE` and
                `STREAM`; shared as weights are.
            then: called on the first rank when the folder stands in its place.

        Raises:
            UserError: a rank could not write; names it. What stood there before still stands.
        """
        self.wait()
        tensors = {**_detached(weights), **moments_of(weights, optimizers), **(more or {})}
        writer = _Writer(path, dict(plain), dict(own or {}), then)
        with _one_line(path), _quiet():
            if self._background:
                begun = async_save(tensors, storage_writer=writer, process_group=self._group)
                assert isinstance(begun, Future)
                self._running, self._path = begun, path
            else:
                save(tensors, storage_writer=writer, process_group=self._group)

    def wait(self) -> None:
        """Until what was begun is written.

        Raises:
            UserError: see `save`.
        """
        if self._running is not None:
            running, self._running = self._running, None
            with _one_line(self._path):
                running.result()


class _Writer(HuggingFaceStorageWriter):
    """DCP's writer of safetensors, around which a folder becomes whole or stays absent.

    The first rank clears the place beside before any other writes (they wait for its plan), and gives the folder its
    name after all have written (it waits for their results).
    """

    def __init__(self, path: Path, plain: dict[str, Any], own: dict[str, Tensor], then: Callable[[], None]) -> None:
        self._place, self._plain, self._own, self._then = path, plain, own, then
        self._beside = path.with_name(f".{path.name}.unfinished")
        super().__init__(str(self._beside / SHARDS), save_distributed=True)

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        if self._beside.exists():
            shutil.rmtree(self._beside)
        (self._beside / SHARDS).mkdir(parents=True)
        return super().prepare_global_plan(plans)

    def write_data(self, plan: Any, planner: Any) -> Any:
        if self._own:
            save_file(self._own, _rank_file(self._beside, self.rank or 0))
        return super().write_data(plan, planner)

    def finish(self, metadata: Any, results: Any) -> None:
        files = {str(f.relative_to(self._beside)): f.stat().st_size for f in self._beside.rglob("*") if f.is_file()}
        written = {"ranks": len(results), "files": dict(sorted(files.items()))}
        write_json(self._beside / STATE, {**self._plain, "written": written})
        put_in_place(self._beside, self._place)
        self._then()


def load_together(path: Path, weights: Mapping[str, Tensor], optimizers: Optimizers) -> dict[str, Any]:
    """Puts weights and moments back, in place; the ranks may be others, and share differently, than those that saved.

    Args:
        path: the folder of a checkpoint, of many ranks or of one process.
        weights: this rank's, by name.
        optimizers: of these weights.

    Returns:
        The plain data of the checkpoint.

    Raises:
        UserError: files are missing or damaged, or the checkpoint is of another model.
    """
    plain: dict[str, Any] = read_json(path / STATE)
    _require_whole(path, _written(plain).get("files", {}))
    reader, shapes = _reader_of(path)
    _require_same(path, weights, shapes)
    moments = _room_for_moments(weights, shapes)
    _read(path, reader, {**_detached(weights), **moments})
    take_moments(weights, optimizers, moments)
    return plain


def read_together(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fills tensors with what a checkpoint has under their names, whoever wrote it.

    Args:
        path: the folder of the checkpoint.
        tensors: of every rank, by the names they were saved under.

    Raises:
        UserError: one of them is missing there, or has another shape.
    """
    reader, shapes = _reader_of(path)
    wrong = next((name for name, tensor in tensors.items() if shapes.get(name) != tuple(tensor.shape)), None)
    if wrong is not None:
        raise UserError(f"{wrong!r} is missing, or has another shape", where=str(path))
    _read(path, reader, tensors)


def own_of(path: Path) -> dict[str, Tensor] | None:
    """This rank's own tensors; None where the checkpoint is of another number of ranks."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if _written(read_json(path / STATE)).get("ranks") != world:
        return None
    file = _rank_file(path, rank)
    return load_file(file) if file.exists() else {}


def _written(plain: Mapping[str, Any]) -> dict[str, Any]:
    """What the ranks noted of their files; nothing where one process wrote."""
    return plain.get("written", {})


def _read(path: Path, reader: Any, tensors: Mapping[str, Tensor]) -> None:
    with _one_line(path), _quiet():
        planner = DefaultLoadPlanner(flatten_state_dict=False)
        load(dict(tensors), storage_reader=reader, planner=planner, no_dist=not dist.is_initialized())


def _detached(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in weights.items()}


def shard_files(path: Path) -> list[Path]:
    """The safetensors files with a checkpoint's weights and moments, whoever wrote it."""
    shards = path / SHARDS
    whole = [path / f"{name}.safetensors" for name in ("weights", "optimizer", "objective")]
    return sorted(shards.glob("*.safetensors")) if shards.is_dir() else [file for file in whole if file.exists()]


def _reader_of(path: Path) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """How to read what lies in a checkpoint, and the shape of each tensor in it."""
    if (path / METADATA).exists():
        metadata = read_pickled(path)
        shapes = {name: tuple(one.size) for name, one in metadata.state_dict_metadata.items()}  # type: ignore[union-attr]
        return PickledReader(path, metadata), shapes
    shards = Shards(shard_files(path))
    return ShardsReader(path, shards), shards.shapes


def _require_whole(path: Path, files: Mapping[str, int]) -> None:
    """Every file as long as it was when it was written."""
    for name, size in files.items():
        file = path / name
        if not file.is_file() or file.stat().st_size != size:
            what = "is cut off" if file.is_file() else "is missing"
            raise UserError(what, where=str(file), mend=f"remove {path} to resume the checkpoint before")


def _require_same(path: Path, weights: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """The names and shapes of all ranks' weights are the checkpoint's; where they are not, all ranks say so."""
    saved = {name for name in shapes if not name.startswith((MOMENTS, OBJECTIVE, STREAM))}
    ranks = _of_all_ranks({name: tuple(weight.shape) for name, weight in weights.items()})
    asked = {name: shape for rank in ranks for name, shape in rank.items()}
    wrong = [name for name, shape in asked.items() if shapes.get(name) != shape]
    if wrong:
        name = wrong[0]
        has = f"has shape {list(shapes[name])}" if name in saved else "is missing"
        what = f"{name!r} {has}, and the model's has {list(asked[name])}"
    elif saved - asked.keys():
        what = f"{min(saved - asked.keys())!r} is left over"
    else:
        return
    raise UserError(f"the checkpoint is of another model: {what}", where=str(path))


def _of_all_ranks(mine: dict[str, tuple[int, ...]]) -> list[dict[str, tuple[int, ...]]]:
    """Stages of a pipeline have other names each."""
    if not dist.is_initialized():
        return [mine]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, mine)
    return gathered


def _room_for_moments(weights: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Empty moments for what the checkpoint has of these weights: laid out as the weight, or a number for it."""
    found: dict[str, Tensor] = {}
    for full, shape in shapes.items():
        weight = weights.get(full.removeprefix(MOMENTS).rpartition(".")[0]) if full.startswith(MOMENTS) else None
        if weight is not None:
            alike = shape == tuple(weight.shape) and len(shape) > 0
            found[full] = torch.zeros_like(weight.detach()) if alike else torch.zeros(shape)
    return found


def _rank_file(path: Path, rank: int) -> Path:
    return path / f"rank-{rank:05d}.safetensors"


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """What went wrong on some rank, as one line."""
    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        reason = getattr(cause, "strerror", None) or str(cause).splitlines()[0]
        raise UserError(f"rank {rank}: {reason}", where=str(path)) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without DCP's remarks on what is meant so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch.distributed")
        yield
