"""When the operators are loaded, when they are built, and what is said of it."""

import logging
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from intaglio.files import home
from intaglio.native import library


class Started:
    """Stands where processes are started, and keeps what was asked of it."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.settings: dict[str, Any] = {}

    def __call__(self, command: list[str], **settings: Any) -> None:
        self.commands.append(command)
        self.settings = settings


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Started]:
    """A machine with a compiler, an empty cache folder, and a process that has not decided yet."""
    one = Started()
    monkeypatch.setenv("INTAGLIO_HOME", str(tmp_path))
    monkeypatch.delenv("INTAGLIO_NATIVE", raising=False)
    monkeypatch.setattr(library, "missing_tools", list)
    monkeypatch.setattr(subprocess, "Popen", one)
    library.available.cache_clear()
    yield one
    library.available.cache_clear()


def test_what_is_not_built_is_built_beside(started: Started, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert not library.available()
        assert not library.available()
    assert [command[1:] for command in started.commands] == [["-m", "intaglio.native.build"]]
    assert started.settings["start_new_session"]  # it outlives this process
    (record,) = caplog.records
    assert "for the next start" in record.getMessage()


def test_a_build_is_not_begun_twice(started: Started) -> None:
    library.available()
    library.available.cache_clear()
    assert not library.available()  # as another process would ask
    assert len(started.commands) == 1
    long_ago = time.time() - 7200
    os.utime(library.build_log(), (long_ago, long_ago))
    library.available.cache_clear()
    library.available()
    assert len(started.commands) == 2


def test_a_process_keeps_its_path(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(torch.ops, "load_library", loaded.append)
    assert not library.available()
    library.library_file().write_bytes(b"")
    assert not library.available()
    library.available.cache_clear()
    assert library.available()
    assert loaded == [str(library.library_file())]


def test_off_is_off(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTAGLIO_NATIVE", "off")
    assert not library.available()
    assert started.commands == []


def test_without_a_compiler_there_is_nothing_to_wait_for(
    started: Started, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "missing_tools", lambda: ["c++", "ninja"])
    with caplog.at_level(logging.INFO):
        assert not library.available()
    assert "for want of c++ and ninja" in caplog.text
    assert started.commands == []


def test_the_compiler_that_is_named_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in library.missing_tools()


def test_a_folder_that_cannot_be_written_stops_nobody(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    (home() / "native").write_text("in the way")
    assert not library.available()
    assert started.commands == []


def test_the_name_tells_what_it_was_built_from(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {library.library_file()}
    monkeypatch.setattr(library, "compiler_flags", lambda: ("-mavx2",))
    names.add(library.library_file())
    monkeypatch.setattr(torch, "__version__", "0")
    names.add(library.library_file())
    monkeypatch.setattr(library, "sources", list)
    names.add(library.library_file())
    assert len(names) == 4
