"""Programs of an environment of their own: looked for, run, and quoted where they fail.

The evaluators want other versions of shared libraries than we do. They are looked for where the user says, beside our
Python, in a folder `.venv-eval` beside our environment, where `make eval-env` puts them, and on the PATH.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from intaglio.errors import UserError
from intaglio.files import read_text, whole_file

__all__ = ["LOG", "PYTHON", "OutsideError", "begin", "find_program", "run_program", "version_of"]

PYTHON: Final = "INTAGLIO_EVAL_PYTHON"
"""The environment variable that names the evaluators' Python, where no option does."""
LOG: Final = "log.txt"
"""What a program has said, in its folder."""
_LAST: Final = 400
"""Characters of the last words that are quoted."""


class OutsideError(Exception):
    """A program that we started has failed; the text says which, how, its last words, and where all of them are."""


def find_program(name: str, python: Path | None = None) -> Path:
    """The program `name` of the environment that has it.

    Args:
        name: `lm_eval`, say.
        python: the Python that it must stand beside; None: see the top of the file.

    Raises:
        UserError: it is not there; says how to install it.
    """
    stated = python or (Path(os.environ[PYTHON]) if os.environ.get(PYTHON) else None)
    ours = Path(sys.prefix)
    known = [str(ours / "bin"), str(ours.parent / ".venv-eval" / "bin"), os.environ.get("PATH", "")]
    folders = known if stated is None else [str(stated.absolute().parent)]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        where = str(stated) if stated else f"--with {name.replace('_', '-')}"
        mend = "run `make eval-env`, or name the Python that has it with --python"
        raise UserError(f"{name} is not installed", where=where, mend=mend)
    return Path(found)


def begin(folder: Path, asked: Any, keep: str) -> None:
    """Empties the folder of a run, all but `keep`, in which a program holds what was answered; that too, unless the
    run before was of the very same.

    Args:
        folder: of one program.
        asked: all that decides the answers.
        keep: a file or a folder in it.
    """
    told = hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode("utf-8", "surrogatepass")).hexdigest()
    stamp = folder / "asked"
    same = stamp.is_file() and read_text(stamp) == told
    for inside in [] if not folder.is_dir() else list(folder.iterdir()):
        if not (same and inside.name == keep):
            shutil.rmtree(inside) if inside.is_dir() else inside.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(stamp) as beside:
        beside.write_text(told, encoding="utf-8")


def run_program(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
    """Runs a program to its end in `folder`, offline unless the user's environment says otherwise; what it says goes to
    `folder/log.txt`.

    Raises:
        OutsideError: it failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    quiet = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with (folder / LOG).open("wb") as log:
        whole = {**quiet, **os.environ, **environment}
        ended = subprocess.run(command, cwd=folder, env=whole, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    if ended.returncode:
        what = f"{Path(command[0]).name} ended with status {ended.returncode}: {_last_words(folder / LOG)}"
        raise OutsideError(f"{what} ({folder / LOG} has all it said)")


def version_of(program: Path, package: str) -> str:
    """The version of a package in a program's environment; `?` where that does not say."""
    ask = f"import importlib.metadata as m; print(m.version({package!r}))"
    python = program.with_name("python")
    told = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=False)
    return told.stdout.strip() or "?"


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][-_LAST:] if lines else "it said nothing"
