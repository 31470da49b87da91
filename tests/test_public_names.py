"""What `import intaglio` offers is there, and is what its name says."""

import importlib
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import intaglio

PACKAGE = Path(intaglio.__file__).parent
REFERENCE = PACKAGE.parents[1] / "docs" / "reference"
LISTED = re.findall(
    r"^\| \[`(\w+)`\]\((\w+\.md)#([\w.]+)\)", (REFERENCE / "python.md").read_text("utf-8"), re.MULTILINE
)
MODULES = {
    page.name: re.findall(r"^::: ([\w.]+)$", page.read_text("utf-8"), re.MULTILINE) for page in REFERENCE.glob("*.md")
}


@pytest.mark.parametrize("name", intaglio.__all__)
def test_a_public_name_is_where_it_is_said_to_live(name: str) -> None:
    home = importlib.import_module(intaglio._HOMES[name])
    assert getattr(intaglio, name) is getattr(home, name)


def test_no_name_is_forgotten() -> None:
    assert set(intaglio.__all__) == set(intaglio._HOMES)


def test_an_unknown_name_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = intaglio.nothing


def test_the_reference_lists_every_name() -> None:
    assert sorted(name for name, *_ in LISTED) == sorted(intaglio.__all__)


@pytest.mark.parametrize(("name", "page", "anchor"), LISTED)
def test_a_listed_name_is_where_the_reference_says(name: str, page: str, anchor: str) -> None:
    module, _, found = anchor.rpartition(".")
    assert getattr(importlib.import_module(module), found) is getattr(intaglio, name)
    assert module in MODULES[page]


def test_the_modules_of_the_reference_are_there() -> None:
    assert not [module for modules in MODULES.values() for module in modules if find_spec(module) is None]


def test_whoever_imports_it_sees_its_types() -> None:
    assert (PACKAGE / "py.typed").exists()
