"""What `import intaglio` offers is there, and is what its name says."""

import importlib

import pytest

import intaglio


@pytest.mark.parametrize("name", intaglio.__all__)
def test_a_public_name_is_where_it_is_said_to_live(name: str) -> None:
    home = importlib.import_module(intaglio._HOMES[name])
    assert getattr(intaglio, name) is getattr(home, name)


def test_no_name_is_forgotten() -> None:
    assert set(intaglio.__all__) == set(intaglio._HOMES)


def test_an_unknown_name_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = intaglio.nothing
