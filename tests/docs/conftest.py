"""Where a page's commands run."""

from pathlib import Path

import pytest

from doc_home import fill_folder, fill_home


@pytest.fixture(scope="session")
def toy_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `doc_home.fill_home`."""
    home = tmp_path_factory.mktemp("toy-home")
    fill_home(home)
    return home


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """See `doc_home.fill_folder`; commands run here."""
    fill_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path
