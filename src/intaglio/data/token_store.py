"""Examples that were tokenised once, in files that are mapped into memory: opened at once, however large.

A store lies in a folder named by what it was made of: the files' bytes, the tokenizer, the policy. It appears there
whole or not at all.

    ids.i32          (T,) int32, all examples end to end
    supervised.u1    (T,) bool
    offsets.i64      (n + 1,) int64, where each example begins, and the end of the last
    file.i32         (n,) int32, which of the files in meta.json
    line.i64         (n,) int64, the number of the line or row there; -1 for a file that is one document
    meta.json        counts, formats, files, what was skipped
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from intaglio.data.encoding import Encoded, Encoder, add_counts, chunks, encode_chunks
from intaglio.data.examples import Counts, Example
from intaglio.data.readers import Rows, read_rows
from intaglio.errors import UserError
from intaglio.files import home, read_json, whole_directory, write_json

__all__ = ["TokenStore"]

_VERSION = 1  # of the files and of what encoding gives; raised when either changes
_ARRAYS: Final[dict[str, str]] = {
    "ids.i32": "<i4",
    "supervised.u1": "?",
    "offsets.i64": "<i8",
    "file.i32": "<i4",
    "line.i64": "<i8",
}
_PLACE = re.compile(r"(.*[:#])(\d+)", re.DOTALL)
_SKIPPED_SHOWN = 100


class TokenStore:
    """A store on disk (see `Store`).

    Args:
        folder: where `build` put it.

    Attributes:
        key: names what it was made of.
        counts: what became of the rows.
        formats: how many rows of each format were read.
        num_skipped: files and rows that could not be read.
        skipped: `(where, reason)` of the first hundred of them.
    """

    def __init__(self, folder: Path) -> None:
        meta = read_json(folder / "meta.json")
        self.key = folder.name
        self.counts = Counts(**meta["counts"])
        self.formats: dict[str, int] = meta["formats"]
        self.num_skipped: int = meta["num_skipped"]
        self.skipped = [(where, reason) for where, reason in meta["skipped"]]
        self._files: list[str] = meta["files"]
        self._ids, self._supervised, self._offsets, self._file, self._line = (
            np.memmap(folder / name, dtype=kind, mode="r") for name, kind in _ARRAYS.items()
        )

    @classmethod
    def build(
        cls,
        source: str | Path,
        encoder: Encoder,
        *,
        workers: int | None = None,
        folder: Path | None = None,
        progress: Callable[[Counts], None] | None = None,
    ) -> "TokenStore":
        """Tokenises all rows of `source` (see `read_rows`), unless that was done before.

        Args:
            source: a file, folder or glob.
            encoder: how rows become examples.
            workers: processes; None: one a core.
            folder: where stores lie; None: `tokens` in the cache folder.
            progress: told the counts so far, now and then.

        Raises:
            UserError: as `read_rows` and `Encoder`; no row gives an example; the disk is full.
        """
        rows = read_rows(source)
        place = (home() / "tokens" if folder is None else folder) / _key(rows.files, encoder)
        if not _is_whole(place):
            with whole_directory(place) as beside:
                encoded = encode_chunks(chunks(rows), encoder, workers)
                _write(beside, encoded, rows, progress or (lambda counts: None))
        return cls(place)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example, `(n,)` int32."""
        return np.diff(self._offsets).astype(np.int32)

    @property
    def num_tokens(self) -> int:
        """Tokens of all examples."""
        return len(self._ids)

    @property
    def num_supervised(self) -> int:
        """How many of them are supervised."""
        return int(np.count_nonzero(self._supervised))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, i: int) -> Example:
        number = range(len(self))[i]
        taken = slice(int(self._offsets[number]), int(self._offsets[number + 1]))
        file, line = self._files[self._file[number]], int(self._line[number])
        return Example(self._ids[taken], self._supervised[taken], file if line < 0 else f"{file}{line}")


def _key(files: Iterable[Path], encoder: Encoder) -> str:
    identity = {"version": _VERSION, "files": [[str(file), _digest(file)] for file in files], **encoder.identity()}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]


def _digest(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        return f"unreadable: {error}"  # reading it will say so, or leave it out, as the source asks


def _is_whole(folder: Path) -> bool:
    """Whether a store lies there with every byte: the power may have failed between writing and renaming."""
    if not (folder / "meta.json").is_file():
        return False
    sizes = read_json(folder / "meta.json")["sizes"]
    return all((folder / name).is_file() and (folder / name).stat().st_size == sizes[name] for name in _ARRAYS)


def _write(folder: Path, chunks: Iterator[Encoded], rows: Rows, progress: Callable[[Counts], None]) -> None:
    counts, formats, files = Counts(), Counter[str](), dict[str, int]()
    with ExitStack() as stack:
        streams = {name: stack.enter_context((folder / name).open("wb")) for name in _ARRAYS}
        _append(streams["offsets.i64"], "<i8", [0])
        end = 0
        for encoded in chunks:
            end = _write_chunk(streams, encoded, end, files)
            add_counts(counts, encoded.counts)
            formats += encoded.formats
            progress(counts)
    if not counts.kept:
        raise _nothing_kept(counts, rows)
    meta: dict[str, Any] = {
        "counts": vars(counts),
        "formats": dict(formats),
        "files": list(files),
        "num_skipped": len(rows.skipped),
        "skipped": [[skipped.where, skipped.reason] for skipped in rows.skipped[:_SKIPPED_SHOWN]],
        "sizes": {name: (folder / name).stat().st_size for name in _ARRAYS},
    }
    write_json(folder / "meta.json", meta)


def _write_chunk(streams: Mapping[str, BinaryIO], encoded: Encoded, end: int, files: dict[str, int]) -> int:
    """Appends a chunk behind `end` tokens; returns where the tokens end now. New files are entered in `files`."""
    places = [_place(where) for where in encoded.wheres]
    ends = end + np.cumsum(encoded.lengths, dtype=np.int64)
    _append(streams["ids.i32"], "<i4", encoded.ids)
    _append(streams["supervised.u1"], "?", encoded.supervised)
    _append(streams["offsets.i64"], "<i8", ends)
    _append(streams["file.i32"], "<i4", [files.setdefault(file, len(files)) for file, _ in places])
    _append(streams["line.i64"], "<i8", [line for _, line in places])
    return int(ends[-1]) if len(ends) else end


def _append(stream: BinaryIO, kind: str, values: np.ndarray | list[int]) -> None:
    stream.write(np.asarray(values, dtype=kind).tobytes())


def _place(where: str) -> tuple[str, int]:
    """`file:12` is the file with its colon, and the line."""
    match = _PLACE.fullmatch(where)
    return (match[1], int(match[2])) if match and str(int(match[2])) == match[2] else (where, -1)


def _nothing_kept(counts: Counts, rows: Rows) -> UserError:
    reasons = [
        f"{counts.read} rows read",
        f"{counts.dropped_long} dropped as too long",
        f"{counts.dropped_empty} without anything to learn",
        f"{len(rows.skipped)} files or rows unreadable",
    ]
    return UserError(f"no examples: {', '.join(reasons)}", where=str(rows.files[0]))
