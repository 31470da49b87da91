"""MODEL: a directory, a preset, or a pulled model."""

from pathlib import Path

import pytest

from intaglio.errors import UserError
from intaglio.files import write_json
from intaglio.lineage import preset
from intaglio.lineage.resolve import resolve_spec
from intaglio.specs.families import config_of


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A model directory that says what GPT-1 is."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    write_json(folder / "config.json", config_of(preset("gpt1").spec))
    return folder


def test_a_preset() -> None:
    title, spec, found = resolve_spec("gpt2-xl")
    assert (title, spec, found) == ("GPT-2", preset("gpt2-xl").spec, preset("gpt2-xl"))


def test_a_directory(directory: Path) -> None:
    assert resolve_spec(str(directory)) == ("my-model", preset("gpt1").spec, None)


def test_a_pulled_model(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = directory.parent / "home"
    (home / "models").mkdir(parents=True)
    directory.rename(home / "models" / "pulled-one")
    monkeypatch.setenv("INTAGLIO_HOME", str(home))
    assert resolve_spec("pulled-one") == ("pulled-one", preset("gpt1").spec, None)
    with pytest.raises(UserError, match="did you mean pulled-one"):
        resolve_spec("pulledone")


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"did you mean .*smollm2-135m"):
        resolve_spec("SmolLM2-135")


def test_a_name_like_no_other_does_not_list_them_all() -> None:
    with pytest.raises(UserError, match="lineage --all") as caught:
        resolve_spec("?")
    assert len(str(caught.value)) < 150


def test_a_directory_without_config_is_said_to_have_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json"):
        resolve_spec(str(tmp_path))
