"""Parts of a measurement: kept, gone on with, and made side by side."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

import echoed_parts
import intaglio
from echoed_parts import broken, echo
from intaglio.atlas.findings import Finding
from intaglio.atlas.parts import Results, Stage, measure
from intaglio.errors import UserError


@dataclass
class Echoes:
    name: ClassVar[str] = "echoes"
    size: int = 1
    last: Callable[..., Any] = echo
    seen: list[Results] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        return {"size": self.size}

    def stages(self) -> list[Stage]:
        return [
            {name: partial(echo, name) for name in ("a", "b", "c")},
            {},
            {"d": partial(echo, "d"), "e": partial(self.last, "e")},
        ]

    def finding(self, results: Results) -> Finding:
        self.seen.append(results)
        return Finding("title", ("part",), [(name,) for name in results], [], {}, "x")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_part_knows_the_stages_before_its_own(tmp_path: Path, jobs: int) -> None:
    said: list[str] = []
    claims = Echoes()
    measure(claims, tmp_path, said.append, jobs)
    (results,) = claims.seen
    assert sorted(results) == ["a", "b", "c", "d", "e"]
    assert [results[name]["before"] for name in "abcde"] == [[], [], [], ["a", "b", "c"], ["a", "b", "c"]]
    assert {one["folder"] for one in results.values()} == {"echoes"}
    assert said == [f"echoes {place}/5: {name}" for place, name in enumerate("abcde", 1)]
    processes = {results[name]["process"] for name in "abc"}
    assert (processes == {os.getpid()}) == (jobs == 1)
    assert len(processes) <= jobs
    measure(claims, tmp_path, said.append, jobs)
    assert claims.seen[1] == results
    assert len(said) == 5


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_is_finished_is_kept_when_a_part_breaks(tmp_path: Path, jobs: int) -> None:
    with pytest.raises(RuntimeError, match=r"^e$"):
        measure(Echoes(last=broken), tmp_path, lambda line: None, jobs)
    kept = json.loads((tmp_path / "echoes.json").read_text(encoding="utf-8"))["parts"]
    assert {"a", "b", "c"} <= set(kept) <= {"a", "b", "c", "d"}
    said: list[str] = []
    measure(Echoes(), tmp_path, said.append, 1)
    assert said[-1] == "echoes 5/5: e"
    assert len(said) == 5 - len(kept)


def test_parts_of_another_size_are_refused(tmp_path: Path) -> None:
    measure(Echoes(), tmp_path, lambda line: None)
    with pytest.raises(UserError, match="measurements of another size; take another --out"):
        measure(Echoes(size=2), tmp_path, lambda line: None)


_PATIENT = """
import signal
import sys
from functools import partial
from pathlib import Path
from echoed_parts import patient
from intaglio.atlas.parts import measure

class Waiting:
    name = "waiting"
    def plain(self): return {}
    def stages(self): return [{name: partial(patient, name) for name in "abc"}]

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what is begun in the background ignores it
    measure(Waiting(), Path(sys.argv[1]), print, 2)
"""


def test_an_interruption_reaches_what_runs_beside_and_nothing_more_begins(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_PATIENT, encoding="utf-8")
    places = os.pathsep.join(
        str(place) for place in (Path(echoed_parts.__file__).parent, Path(intaglio.__file__).parents[1])
    )
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], env={**os.environ, "PYTHONPATH": places}, stderr=subprocess.PIPE
    )
    folder = tmp_path / "waiting"
    for _ in range(600):
        if {f"{name}-began" for name in "ab"} <= {file.name for file in folder.glob("*")}:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)  # to the first process alone
    _, said = process.communicate(timeout=30)
    assert process.returncode != 0
    assert said.decode().count("Traceback") == 1  # its own
    assert sorted(file.name for file in folder.glob("*")) == ["a-began", "a-stopped", "b-began", "b-stopped"]
