"""Parts are made once, in order, and kept."""

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from intaglio.atlas.findings import Finding
from intaglio.atlas.parts import Part, Results, measure
from intaglio.errors import UserError


class Counting:
    """Three parts, each the sum of those before it and 1; the one that is called `stops_at` is interrupted."""

    name: ClassVar[str] = "counting"

    def __init__(self, size: int = 1, stops_at: str = "") -> None:
        self.size, self.stops_at = size, stops_at
        self.made: list[str] = []

    def plain(self) -> dict[str, Any]:
        return {"size": self.size}

    def parts(self) -> dict[str, Part]:
        return {name: partial(self._part, name) for name in ("first", "second", "third")}

    def finding(self, results: Results) -> Finding:
        return Finding("sums", tuple(results), [tuple(map(str, results.values()))], [], {}, "")

    def _part(self, name: str, folder: Path, results: Results) -> int:
        if name == self.stops_at:
            raise KeyboardInterrupt
        self.made.append(name)
        return 1 + sum(results.values())


def test_a_part_knows_those_before_it(tmp_path: Path) -> None:
    said: list[str] = []
    assert measure(Counting(), tmp_path, said.append).rows == [("1", "2", "4")]
    assert said == ["counting 1/3: first", "counting 2/3: second", "counting 3/3: third"]


def test_what_is_finished_is_not_made_again(tmp_path: Path) -> None:
    stopped, later, again = Counting(stops_at="third"), Counting(), Counting()
    with pytest.raises(KeyboardInterrupt):
        measure(stopped, tmp_path, lambda line: None)
    assert stopped.made == ["first", "second"]
    found = measure(later, tmp_path, lambda line: None)
    assert later.made == ["third"]
    assert measure(again, tmp_path, lambda line: None) == found
    assert again.made == []


def test_parts_of_another_size_are_not_mixed_in(tmp_path: Path) -> None:
    measure(Counting(), tmp_path, lambda line: None)
    with pytest.raises(UserError, match="holds measurements of another size"):
        measure(Counting(size=2), tmp_path, lambda line: None)
