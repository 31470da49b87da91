"""The Python standard library as a corpus: the source of modules that every machine with Python has."""

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["stdlib_files"]

LEFT_OUT: Final = frozenset(
    """__pycache__ dist-packages encodings ensurepip idle_test lib2to3 pydoc_data site-packages test tests""".split()
)
"""Folders of other people's packages, of tests, of tables and generated text, and lib2to3, which newer Pythons lack."""

GENERATED: Final = "_sysconfigdata"


def stdlib_files() -> list[Path]:
    """The .py files of the running Python's standard library, without tests, in the order of their paths.

    Nothing but the Python decides the list: two runs on one machine see the same files in the same order.
    """
    return sorted(_python_files(Path(sysconfig.get_path("stdlib"))), key=lambda path: path.as_posix())


def _python_files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT and not name.startswith("config-")]
        for name in names:
            if name.endswith(".py") and not name.startswith(GENERATED):
                yield Path(folder) / name
