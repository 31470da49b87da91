"""Data of figures are kept while nothing that they hang on changes, and made anew when anything does."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from intaglio.atlas import keep
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.svg import Canvas


@dataclass(frozen=True)
class Counting(Figure):
    """Counts how often it is made."""

    name: ClassVar[str] = "counting"
    title: ClassVar[Words] = Words("a", "a")
    claim: ClassVar[Words] = Words("b", "b")
    size: int = 1
    made: ClassVar[list[int]] = []
    reads: ClassVar[list[str]] = [""]

    def data(self) -> Any:
        self.made.append(self.size)
        return {"made": len(self.made), "pair": (1, 2)}

    def caption(self, data: Any) -> Words:
        return Words("c", "c")

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        return []

    def inputs(self) -> str:
        return self.reads[0]


@pytest.fixture(autouse=True)
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small package in the place of ours: the figure's module imports one that imports another."""
    package = tmp_path / "intaglio"
    files = {
        "__init__.py": "",
        "atlas/__init__.py": "",
        "atlas/fig.py": "from intaglio.parts import (\n    norm,\n    thing,\n)\n",
        "parts/__init__.py": "",
        "parts/norm.py": "def later():\n    import intaglio.specs.base\n",
        "parts/other.py": "",
        "specs/__init__.py": "",
        "specs/base.py": "",
        "specs/sizes/one.yaml": "a: 1",
    }
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    monkeypatch.setattr(keep, "_PACKAGE", package)
    monkeypatch.setattr(Counting, "__module__", "intaglio.atlas.fig")
    monkeypatch.setattr(Counting, "made", [])
    monkeypatch.setattr(Counting, "reads", [""])
    monkeypatch.setenv("INTAGLIO_HOME", str(tmp_path / "home"))
    forget()
    return package


def forget() -> None:
    """What one process remembers of the files."""
    for known in (keep._imported, keep._beside, keep._there, keep._digest):
        known.cache_clear()


def test_the_code_is_what_is_imported_and_its_data(house: Path) -> None:
    names = {str(file.relative_to(house)) for file in keep.code_of("intaglio.atlas.fig")}
    assert {"atlas/fig.py", "parts/norm.py", "parts/__init__.py", "specs/base.py", "specs/sizes/one.yaml"} <= names
    assert "parts/other.py" not in names


@pytest.mark.parametrize("changed", ["atlas/fig.py", "parts/norm.py", "specs/base.py", "specs/sizes/one.yaml"])
def test_changed_code_makes_a_new_key(house: Path, changed: str) -> None:
    before = keep.key_of(Counting())
    (house / changed).write_text((house / changed).read_text() + "\n# changed\n")
    forget()
    assert keep.key_of(Counting()) != before


def test_other_code_changes_nothing(house: Path) -> None:
    before = keep.key_of(Counting())
    (house / "parts/other.py").write_text("x = 1")
    forget()
    assert keep.key_of(Counting()) == before


def test_sizes_and_inputs_are_in_the_key() -> None:
    first = keep.key_of(Counting())
    assert keep.key_of(Counting(size=2)) != first
    Counting.reads[0] = "another model"
    assert keep.key_of(Counting()) != first


def test_data_are_made_once() -> None:
    assert keep.data_of(Counting()) == {"made": 1, "pair": [1, 2]}, "as JSON has it, the first time too"
    assert keep.data_of(Counting())["made"] == 1
    assert keep.data_of(Counting(), fresh=True)["made"] == 2
    assert keep.data_of(Counting(size=2))["made"] == 3


def test_our_own_figures_hang_on_the_parts_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    forget()
    files = {file.name for file in keep.code_of("intaglio.atlas.figures.masks")}
    assert {"masks.py", "context.py", "cache.py"} <= files
    assert not {"charts.py", "svg.py"} & files, "how it is drawn is no matter of its data"
    tree = {file.name for file in keep.code_of("intaglio.atlas.figures.family_tree")}
    assert {"gpt1.yaml", "changed.yaml", "decoder_words.py"} <= tree
