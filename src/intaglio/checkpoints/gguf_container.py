"""The GGUF container: a header of typed keys, a table of tensors, then the tensors' bytes.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (little-endian, versions 2 and 3). The `gguf`
library's own reader is not used here because it walks the header one numpy view at a time (10 s for a vocabulary of
262,144 tokens) and follows a corrupt count without end; its tables of types and block sizes are.
"""

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from intaglio.errors import UserError

__all__ = ["Container", "TensorEntry", "read_container"]

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
MAX_DIMENSIONS: Final = 4  # ggml's own limit

SCALARS: Final[dict[int, str]] = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of the table.

    Attributes:
        name: the name in the file, such as `blk.0.attn_q.weight`.
        shape: dimensions in PyTorch's order (rows first).
        kind: how its numbers are stored.
        start: its first byte, counted from the start of the file.
        num_bytes: its length.
    """

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    num_bytes: int


@dataclass(frozen=True)
class Container:
    """A GGUF file whose header has been read and checked; the tensors' bytes stay on disk."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorEntry]
    _bytes: mmap.mmap

    def raw(self, entry: TensorEntry) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes of a tensor, (num_bytes,), mapped and not copied."""
        return np.frombuffer(self._bytes, np.uint8, entry.num_bytes, entry.start)


def read_container(path: Path) -> Container:
    """Reads the header of the GGUF file `path` and checks that every tensor lies inside the file.

    Raises:
        UserError: not a GGUF file, cut short, or with a header that contradicts itself.
    """
    data = _map(path)
    cursor = _Cursor(data, path)
    tensor_count, key_count = _read_prologue(cursor)
    metadata = _read_metadata(cursor, key_count)
    if metadata.get("split.count", 0) not in (0, 1):
        raise cursor.error("one part of a model split over several files", "merge the parts into one GGUF first")
    headers = [_read_tensor_header(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise cursor.error(f"general.alignment is {alignment!r}, not a power of two")
    base = -(-cursor.position // alignment) * alignment
    return Container(path, metadata, _place(headers, base, cursor), data)


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise UserError(f"cannot read: {error.strerror}", where=str(path)) from error
    except ValueError as error:  # an empty file cannot be mapped
        raise UserError("the file is empty, not a GGUF file", where=str(path)) from error


class _Cursor:
    """A position in the header that refuses to leave the file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.position, self.size = data, path, 0, len(data)

    def error(self, what: str, mend: str = "") -> UserError:
        return UserError(what, where=str(self.path), mend=mend)

    def take(self, num_bytes: int) -> int:
        """Moves past `num_bytes` and returns where they start."""
        start = self.position
        if num_bytes > self.size - start:
            raise self.error(f"the GGUF file is cut short or corrupt at byte {start} of {self.size}", "fetch it again")
        self.position = start + num_bytes
        return start

    def u32(self) -> int:
        return int(struct.unpack_from("<I", self.data, self.take(4))[0])

    def u64(self) -> int:
        return int(struct.unpack_from("<Q", self.data, self.take(8))[0])

    def string(self) -> str:
        length = self.u64()
        start = self.take(length)
        try:
            return self.data[start : start + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"the GGUF file holds a string that is not UTF-8 at byte {start}") from error

    def scalars(self, kind: int, count: int) -> list[Any]:
        dtype = np.dtype(SCALARS[kind])
        values = np.frombuffer(self.data, dtype, count, self.take(count * dtype.itemsize))
        if kind == GGUFValueType.FLOAT32 and count == 1:
            return [float(str(values[0]))]  # 1e-06 was meant, not 9.999999974752427e-07
        return list(values.tolist())

    def value(self, kind: int) -> Any:
        if kind == GGUFValueType.STRING:
            return self.string()
        if kind == GGUFValueType.ARRAY:
            return self.array(self.u32(), self.u64())
        if kind not in SCALARS:
            raise self.error(f"unknown GGUF value type {kind} at byte {self.position}", "the file may be corrupt")
        return self.scalars(kind, 1)[0]

    def array(self, kind: int, count: int) -> list[Any]:
        if kind == GGUFValueType.STRING:
            self.require(count, 8)
            return [self.string() for _ in range(count)]
        if kind not in SCALARS:
            raise self.error(f"unknown GGUF array type {kind} at byte {self.position}", "the file may be corrupt")
        return self.scalars(kind, count)

    def require(self, count: int, least: int) -> None:
        """Refuses a count of things of at least `least` bytes that the rest of the file cannot hold."""
        if count * least > self.size - self.position:
            raise self.error(
                f"the GGUF file is cut short or corrupt at byte {self.position} of {self.size}", "fetch it again"
            )


def _read_prologue(cursor: _Cursor) -> tuple[int, int]:
    """Magic and version checked; the numbers of tensors and of keys."""
    if cursor.data[:4] != MAGIC:
        raise cursor.error("not a GGUF file (it does not begin with GGUF)")
    cursor.take(4)
    version = cursor.u32()
    if version not in VERSIONS:
        raise cursor.error(f"GGUF version {version} is not supported", "known: little-endian versions 2 and 3")
    tensor_count, key_count = cursor.u64(), cursor.u64()
    cursor.require(key_count, 13)
    cursor.require(tensor_count, 24)
    return tensor_count, key_count


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string()
        if key in metadata:
            raise cursor.error(f"the metadata key {key!r} occurs twice", "the file may be corrupt")
        metadata[key] = cursor.value(cursor.u32())
    return metadata


def _read_tensor_header(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape in PyTorch's order, type number, offset from the start of the data."""
    name, dimensions = cursor.string(), cursor.u32()
    if dimensions > MAX_DIMENSIONS:
        raise cursor.error(f"tensor {name!r} has {dimensions} dimensions", "the file may be corrupt")
    shape = tuple(cursor.u64() for _ in range(dimensions))[::-1]
    return name, shape, cursor.u32(), cursor.u64()


def _place(headers: list[tuple[str, tuple[int, ...], int, int]], base: int, cursor: _Cursor) -> dict[str, TensorEntry]:
    """Gives every tensor its place in the file."""
    entries: dict[str, TensorEntry] = {}
    for name, shape, number, offset in headers:
        kind = _storage(number, name, cursor.error)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if name in entries or not shape or 0 in shape or shape[-1] % block:
            raise cursor.error(f"tensor {name!r} occurs twice or has an impossible shape {list(shape)}")
        num_bytes = prod(shape) // block * block_bytes
        if base + offset + num_bytes > cursor.size:
            raise cursor.error(f"tensor {name!r} reaches past the end: the GGUF file is cut short", "fetch it again")
        entries[name] = TensorEntry(name, shape, kind, base + offset, num_bytes)
    return entries


def _storage(number: int, name: str, error: Callable[[str], UserError]) -> GGMLQuantizationType:
    try:
        return GGMLQuantizationType(number)
    except ValueError:
        raise error(f"tensor {name!r} has the unknown type number {number}") from None
