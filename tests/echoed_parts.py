"""Parts of a measurement that say what they were given; light enough for a process of their own."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def echo(name: str, folder: Path, before: Mapping[str, Any]) -> dict[str, Any]:
    """What it was given, and the process it ran in."""
    return {"name": name, "folder": folder.name, "before": sorted(before), "process": os.getpid()}


def broken(name: str, folder: Path, before: Mapping[str, Any]) -> None:
    """Raises."""
    raise RuntimeError(name)


def patient(name: str, folder: Path, before: Mapping[str, Any]) -> None:
    """Waits for a minute; leaves a file when it begins, and one when it is told to stop."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}-began").touch()
    try:
        time.sleep(60)
    except BaseException:
        (folder / f"{name}-stopped").touch()
        raise
