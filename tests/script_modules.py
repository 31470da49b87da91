"""A program in `scripts`, which is no package, as a module whose functions a test can call."""

import importlib.util
from pathlib import Path
from typing import Any

__all__ = ["load_script"]


def load_script(name: str) -> Any:
    """The module of `scripts/NAME.py`, run once more at each call."""
    file = Path(__file__).parents[1] / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
