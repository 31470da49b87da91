"""Tensors of which several files hold a piece each, as DCP's Hugging Face writer leaves them, or one file all.

Such files are plain safetensors; where a piece lies in its tensor stands in their headers.
"""

import json
import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from intaglio.errors import UserError

__all__ = ["Shards", "ShardsReader"]

_OFFSETS: Final = "DCP_SHARDING_INFO"
_DTYPES: Final = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class _Piece:
    """A box of a tensor: where it begins, how long its sides are, which file has it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    dtype: torch.dtype
    file: Path

    @property
    def relative_path(self) -> str:
        """What DCP's reader asks for."""
        return str(self.file)


class Shards:
    """The tensors of some safetensors files, pieces put together.

    Args:
        files: all there are.

    Raises:
        UserError: a file is damaged, or pieces of a tensor are missing.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._pieces: dict[str, list[_Piece]] = {}
        self._opened: dict[Path, Any] = {}
        with ExitStack() as stack:
            for file in sorted(files):
                self._opened[file] = opened = stack.enter_context(_open(file))
                for name, piece in _pieces_of(opened, file):
                    self._pieces.setdefault(name, []).append(piece)
            self._stack = stack.pop_all()
        self.shapes = {name: _whole_shape(name, pieces) for name, pieces in self._pieces.items()}

    def tensor(self, name: str) -> Tensor:
        """One tensor whole."""
        pieces = self._pieces[name]
        whole = torch.empty(self.shapes[name], dtype=pieces[0].dtype)
        for piece in pieces:
            box = tuple(slice(at, at + size) for at, size in zip(piece.offsets, piece.sizes, strict=True))
            whole[box] = self._opened[piece.file].get_tensor(name)
        return whole

    def dtype(self, name: str) -> torch.dtype:
        """Of one tensor."""
        return self._pieces[name][0].dtype

    def metadata(self) -> Metadata:
        """What DCP asks of a checkpoint."""
        state: dict[str, Any] = {name: self._described(name) for name in self._pieces}
        stored = {
            MetadataIndex(name, piece.offsets): piece for name, pieces in self._pieces.items() for piece in pieces
        }
        return Metadata(state_dict_metadata=state, storage_data=stored)

    def _described(self, name: str) -> TensorStorageMetadata:
        chunks = [ChunkStorageMetadata(torch.Size(p.offsets), torch.Size(p.sizes)) for p in self._pieces[name]]
        return TensorStorageMetadata(TensorProperties(self.dtype(name)), torch.Size(self.shapes[name]), chunks)


class ShardsReader(HuggingFaceStorageReader):
    """DCP's reader of such files, told which they are, where that one takes all of a folder.

    Args:
        folder: that they lie in.
        shards: what they hold.
    """

    def __init__(self, folder: Path, shards: Shards) -> None:
        super().__init__(str(folder))
        self._metadata = shards.metadata()

    def read_metadata(self) -> Metadata:
        """See `StorageReader`."""
        return self._metadata


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise UserError(f"corrupt or cut off ({str(error).splitlines()[0][:120]})", where=str(path)) from error


def _pieces_of(opened: Any, file: Path) -> list[tuple[str, _Piece]]:
    """What a file holds; one without offsets has whole tensors."""
    said = json.loads((opened.metadata() or {}).get(_OFFSETS, "{}"))
    found = []
    for name in opened.keys():  # noqa: SIM118 (not a dict)
        part = opened.get_slice(name)
        sizes = tuple(part.get_shape())
        offsets = tuple(said[name]["saved_offsets"]) if name in said else (0,) * len(sizes)
        found.append((name, _Piece(offsets, sizes, _DTYPES[part.get_dtype()], file)))
    return found


def _whole_shape(name: str, pieces: Sequence[_Piece]) -> tuple[int, ...]:
    """The smallest box that all pieces lie in, which they must fill: a rank's file may be missing."""
    ends = [[at + size for at, size in zip(p.offsets, p.sizes, strict=True)] for p in pieces]
    shape = tuple(max(sides) for sides in zip(*ends, strict=True))
    if sum(math.prod(p.sizes) for p in pieces) != math.prod(shape):
        raise UserError(f"pieces of tensor {name!r} are missing", where=str(pieces[0].file.parent))
    return shape
