"""Members of wheels and tar files, one after the other, without unpacking the archive or running anything in it."""

import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

__all__ = ["Member", "members"]

Member = tuple[str, IO[bytes]]
"""The path inside the archive (a folder that holds all of a tar file left out), and the content while it is current."""


def members(archive: Path) -> Iterator[Member]:
    """The files in a .whl, .tar.gz or .tgz, in the archive's order, read once from front to end."""
    return _of_zip(archive) if archive.suffix == ".whl" else _of_tar(archive)


def _of_zip(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as whole:
        for info in whole.infolist():
            if not info.is_dir():
                with whole.open(info) as file:
                    yield info.filename, file


def _of_tar(archive: Path) -> Iterator[Member]:
    with tarfile.open(archive, "r|gz") as whole:  # a stream: never goes back, so memory stays small
        for info in whole:
            file = whole.extractfile(info) if info.isfile() else None
            if file is not None:
                yield info.name.partition("/")[2], file
