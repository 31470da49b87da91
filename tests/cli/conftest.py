"""The command line in process: what it prints, where, and with which status it ends."""

import io
import sys
from pathlib import Path

import pytest

from intaglio.cli.main import main
from running import Ran, Run
from toy_llms import save_parrot, save_toy


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line, in this process."""

    def run(*arguments: object, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "argv", ["intaglio", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        status = left.value.code or 0
        assert isinstance(status, int)
        return Ran(status, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def toy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `save_toy`."""
    return save_toy(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture(scope="session")
def parrot_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `save_parrot`."""
    return save_parrot(tmp_path_factory.mktemp("models") / "parrot")
