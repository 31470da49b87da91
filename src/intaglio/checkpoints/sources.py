"""Where tensors come from: the safetensors files of a directory, read one tensor at a time."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from intaglio.errors import UserError
from intaglio.files import read_json

__all__ = ["INDEX_FILE", "WEIGHTS_FILE", "SafetensorsSource", "TensorSource"]

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class TensorSource(Protocol):
    """Named tensors that are read when they are asked for."""

    @property
    def where(self) -> str:
        """What to call it in an error."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor, without reading one."""

    def tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        """One tensor, converted."""


class SafetensorsSource:
    """A directory's `model.safetensors`, or the shards that its index names.

    Raises:
        UserError: no weights, a shard missing, a file cut off or corrupt.
    """

    def __init__(self, directory: Path) -> None:
        self.where = str(directory)
        self._files: dict[str, Any] = {}
        with ExitStack() as stack:
            for path in _files(directory):
                file = stack.enter_context(_open(path))
                self._files |= dict.fromkeys(file.keys(), file)
            self._stack = stack.pop_all()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(file.get_slice(name).get_shape()) for name, file in self._files.items()}

    def tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        stored: Tensor = self._files[name].get_tensor(name)
        if not stored.is_floating_point():
            what = f"tensor {name!r} holds {str(stored.dtype).removeprefix('torch.')}, not floating-point numbers"
            raise UserError(what, where=self.where, mend="quantised safetensors are not supported")
        return stored.to(dtype, copy=True)  # the file is mapped: a copy is aligned and outlives it

    def stored(self, name: str) -> Tensor:
        """One tensor as it is.

        Raises:
            UserError: there is none of this name.
        """
        if name not in self._files:
            raise UserError(f"tensor {name!r} is missing", where=self.where, mend="fetch the model again")
        stored: Tensor = self._files[name].get_tensor(name)
        return stored.clone()


def _files(directory: Path) -> list[Path]:
    index = directory / INDEX_FILE
    if index.exists():
        return _shards(directory, index)
    whole = directory / WEIGHTS_FILE
    if whole.exists():
        return [whole]
    if any(directory.glob("*.bin")) or any(directory.glob("*.pt")):
        mend = "we load no pickle; convert them to safetensors first"
        raise UserError("the weights are pickled (.bin)", where=str(directory), mend=mend)
    raise UserError(f"no weights: neither {WEIGHTS_FILE} nor {INDEX_FILE}", where=str(directory))


def _shards(directory: Path, index: Path) -> list[Path]:
    table = read_json(index)
    names = table.get("weight_map") if isinstance(table, dict) else None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise UserError("no 'weight_map' in the index", where=str(index))
    shards = [directory / name for name in sorted(set(names.values()))]
    for shard in shards:
        if shard.parent != directory or shard.name == "..":
            raise UserError(f"shard outside the directory: {shard}", where=str(index))
        if not shard.is_file():
            raise UserError(f"shard {shard.name!r} is missing", where=str(index), mend="fetch the model again")
    return shards


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        reason = str(error).splitlines()[0][:120]
        raise UserError(f"corrupt or cut off ({reason})", where=str(path), mend="fetch the model again") from error
