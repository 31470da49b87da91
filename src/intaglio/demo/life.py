"""The demo from its first stage to its last: each kept as soon as it is done, so that a stopped one goes on there.

A stage writes into a folder of its own name, and nowhere else.
"""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from intaglio.demo.stage import Desk, Found, Stage
from intaglio.errors import UserError
from intaglio.files import read_json, write_json

__all__ = ["KEPT", "live", "unfinished"]

KEPT: Final = "demo.json"


def unfinished(folder: Path, stages: Sequence[Stage], quick: bool) -> dict[str, Found]:
    """What was found by a demo that was stopped in `folder`; one that was ended makes room for the next.

    Raises:
        UserError: the folder holds something else, or a demo of the other size.
    """
    path = folder / KEPT
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise UserError("holds something else", where=str(folder), mend="name another folder: --out DIR")
        return {}
    kept = read_json(path)
    if all(stage.name in kept["stages"] for stage in stages):
        path.unlink()
        for stage in stages:
            shutil.rmtree(folder / stage.name, ignore_errors=True)
        return {}
    if kept["quick"] != quick:
        size = "a quick demo" if kept["quick"] else "a whole demo"
        raise UserError(f"{size} was begun there", where=str(folder), mend="go on with it, or remove the folder")
    found: dict[str, Found] = kept["stages"]
    return found


def live(desk: Desk, stages: Sequence[Stage]) -> dict[str, Found]:
    """Runs all stages that `desk` has found nothing of; says what each is about, what came of it, and how long it took.

    Returns:
        What each stage found, with its `seconds`.
    """
    for number, stage in enumerate(stages, 1):
        desk.say(f"\n[{number}/{len(stages)}] {stage.about}")
        if stage.name in desk.found:
            desk.say("    done before")
        else:
            _run(desk, stage)
        for line in stage.lines(desk.found[stage.name]):
            desk.say(f"    {line}")
    return desk.found


def _run(desk: Desk, stage: Stage) -> None:
    start = time.perf_counter()
    found = stage.run(desk)
    found["seconds"] = time.perf_counter() - start
    desk.found[stage.name] = found
    desk.folder.mkdir(parents=True, exist_ok=True)
    write_json(desk.folder / KEPT, {"quick": desk.quick, "stages": desk.found})
    budget = stage.seconds[desk.quick]
    desk.say(f"    {found['seconds']:.0f} s (about {budget} s on two idle cores)")
