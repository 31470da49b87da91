"""The folder that real models and built operators stay in between runs."""

import os
from pathlib import Path

__all__ = ["shared_home"]


def shared_home() -> Path:
    """`INTAGLIO_TEST_CACHE`, or `~/.cache/intaglio`."""
    return Path(os.environ.get("INTAGLIO_TEST_CACHE") or Path.home() / ".cache" / "intaglio").expanduser()
