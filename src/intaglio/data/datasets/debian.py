"""Files of Debian packages, fetched by apt-get, which checks them by the archive's own signature; nothing is installed.

What a release holds differs from machine to machine, so that there is no fixed SHA-256 here.
"""

import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from intaglio.errors import UserError

__all__ = ["debian_files"]


def debian_files(package: str, folder: Path, instead: str) -> Iterator[tuple[str, bytes]]:
    """Path and content of every file in the package `package`.

    Args:
        package: of the machine's release.
        folder: where it is downloaded to.
        instead: another data set, which an error names.

    Raises:
        UserError: no apt-get here, or it cannot fetch the package.
    """
    mend = f"take the data set {instead} instead"
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise UserError("needs apt-get, which Debian and Ubuntu have", where=package, mend=mend)
    folder.mkdir(parents=True, exist_ok=True)
    command = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", package]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    file = next(folder.glob(f"{package}_*.deb"), None)
    if done.returncode or file is None:
        said = next((line for line in done.stderr.splitlines() if line.startswith("E:")), "E: no file came")
        raise UserError(f"apt-get: {said[3:]}", where=package, mend=f"run apt-get update, or {mend}")
    yield from _unpacked(file)


def _unpacked(file: Path) -> Iterator[tuple[str, bytes]]:
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(file)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with tarfile.open(fileobj=process.stdout, mode="r|") as whole:
            for info in whole:
                content = whole.extractfile(info) if info.isfile() else None
                if content is not None:
                    yield info.name.removeprefix("./"), content.read()
