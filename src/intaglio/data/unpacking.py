"""Files as streams of bytes, `.gz` and `.zst` unpacked on the way; one that is cut off or corrupt is an error."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from intaglio.errors import UserError

__all__ = ["PACKED", "needs", "open_bytes", "suffix_inside"]

PACKED = (".gz", ".zst")
_CHUNK = 1 << 17  # packed bytes read at a time


def suffix_inside(path: Path) -> str:
    """The extension in small letters, that of the packing left out: `.jsonl` for `rows.JSONL.gz`."""
    inner = Path(path.stem) if path.suffix.lower() in PACKED else path
    return inner.suffix.lower()


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """The unpacked bytes of a file; `.gz` and `.zst` may hold several members or frames.

    Raises:
        UserError: the packing is corrupt or cut off, or `.zst` is asked for without the library that reads it.
        OSError: the file cannot be read.
    """
    try:
        with path.open("rb") as packed, _unpacked(path, packed) as stream:
            yield stream
    except (gzip.BadGzipFile, zlib.error, EOFError, _CorruptError) as error:
        reason = f"corrupt or cut off ({error})"
        raise UserError(reason, where=str(path), mend="copy or download the file again") from error


def needs(module: str, package: str, where: str, extra: str = "train") -> Any:
    """The optional library that a kind of file needs, which comes with the `extra` of ours.

    Raises:
        UserError: it is not installed; says what to install.
    """
    try:
        return import_module(module)
    except ImportError as error:
        what = f"reading this needs {package}, which is not installed"
        raise UserError(what, where=where, mend=f"run `pip install intaglio[{extra}]`") from error


def _unpacked(path: Path, packed: BinaryIO) -> BinaryIO:
    match path.suffix.lower():
        case ".gz":
            return io.BufferedReader(gzip.GzipFile(fileobj=packed))
        case ".zst":
            return io.BufferedReader(_Zstandard(packed, needs("zstandard", "zstandard", str(path))))
        case _:
            return packed


class _CorruptError(Exception):
    """Zstandard data that is no such data, or ends before it should."""


class _Zstandard(io.RawIOBase):
    """Frame after frame to the end; the library's own reader takes a file that is cut off for a whole one."""

    def __init__(self, packed: BinaryIO, library: Any) -> None:
        self._packed = packed
        # frames made with `--long` refer up to 2 GiB back
        self._frames = library.ZstdDecompressor(max_window_size=1 << 31)
        self._error: type[Exception] = library.ZstdError
        self._frame: Any = None
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            chunk = self._left_over() or self._packed.read(_CHUNK)
            if not chunk:
                if self._frame is not None and not self._frame.eof:
                    raise _CorruptError("it ends inside a frame")
                return 0
            self._unpack(chunk)
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def _left_over(self) -> bytes:
        """What follows a frame that has ended is the next one's beginning."""
        if self._frame is None or not self._frame.eof:
            return b""
        rest: bytes = self._frame.unused_data
        self._frame = None
        return rest

    def _unpack(self, chunk: bytes) -> None:
        if self._frame is None:
            self._frame = self._frames.decompressobj()
        try:
            self._ready = self._frame.decompress(chunk)
        except self._error as error:
            raise _CorruptError(str(error)) from error
