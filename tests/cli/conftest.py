"""The command line in process: what it prints, where, and with which status it ends."""

import io
import sys

import pytest

from intaglio.cli.main import main
from running import Ran, Run


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
