"""The two shipped examples of `intaglio advise --measure`, walked on real data: about twenty minutes on two cores.

The task files differ in their data alone, so a winner that differs is the data's doing. `INTAGLIO_RUNS=FOLDER` keeps
what was measured there, and goes on with it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.prove]

ROOT = Path(__file__).parents[2]


def measured(example: str, folder: Path) -> dict[str, Any]:
    """The verdict and the roads, as `--json` prints them; on all cores, which the tests' own environment forbids."""
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    command = [sys.executable, "-m", "intaglio.cli.main", "advise", "--measure", f"recipes/advice/{example}.yaml"]
    run = [*command, "--out", str(folder / f"advice-{example}"), "--json"]
    done = subprocess.run(run, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def winner(found: dict[str, Any]) -> dict[str, Any]:
    """The road that won."""
    (road,) = [one for one in found["roads"] if one["road"] == found["winner"]]
    return dict(road)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept = os.environ.get("INTAGLIO_RUNS")
    return Path(kept) if kept else tmp_path_factory.mktemp("advice")


def test_facts_in_documents_are_looked_up(folder: Path) -> None:
    found = measured("facts", folder)
    assert found["winner"] == "RAG"
    assert winner(found)["quality"]["low"] > 0.8
    blind = [one["quality"]["high"] for one in found["roads"] if "RAG" not in one["road"]]
    assert max(blind) < 0.2  # nobody can know what stands in no row that was learned


def test_a_format_is_learned(folder: Path) -> None:
    found = measured("format", folder)
    assert found["winner"] in ("LoRA", "QLoRA")
    untrained = [one["quality"]["high"] for one in found["roads"] if not one["training_s"]]
    assert max(untrained) < winner(found)["quality"]["low"]
