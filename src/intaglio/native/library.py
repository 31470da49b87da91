"""Where the built operators lie, and whether this process has them.

A start never waits for a compiler and a process never changes its path: what is built is loaded when it is first
asked for; what is not is built by a process of its own, for the next start. The file lies in the cache folder under a
name made of the sources, the version of torch and the abilities of the processor, so a stale one is never loaded.
"""

import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch

from intaglio.files import home

__all__ = ["available", "build_log", "compiler_flags", "library_file", "missing_tools", "sources"]

_LOG = logging.getLogger(__name__)
_AGAIN = 3600.0  # seconds until a build that left nothing is tried once more
_AVX2 = ("avx2", "fma", "f16c")
_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq")
_AVX512_PRODUCTS = ("avx512_bf16", "avx512_vnni")
_UNITS = ("amx_tile", "amx_bf16")
_BUILDERS: list[subprocess.Popen[bytes]] = []  # kept, so that nobody waits for them at the end


@functools.cache
def available() -> bool:
    """Whether the operators are loaded; the first call decides for the whole process, and logs one line.

    `INTAGLIO_NATIVE=off` keeps a process from loading and from building them.
    """
    found, said = _decide()
    _LOG.info("native operators: %s", said)
    return found


def _decide() -> tuple[bool, str]:
    if os.environ.get("INTAGLIO_NATIVE") == "off":
        return False, "off, by INTAGLIO_NATIVE"
    file = library_file()
    if file.is_file():
        torch.ops.load_library(str(file))
        return True, f"loaded ({' '.join(compiler_flags()) or platform.machine()})"
    return False, f"{_start_build()}; this process runs plain torch"


def _start_build() -> str:
    """Starts a build that outlives this process; what there is to say of it."""
    missing = missing_tools()
    if missing:
        return f"none, for want of {' and '.join(missing)}"
    log = build_log()
    if log.is_file() and time.time() - log.stat().st_mtime < _AGAIN:
        return f"none yet, see {log}"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as out:
            command = [sys.executable, "-m", "intaglio.native.build"]
            quiet = subprocess.DEVNULL
            _BUILDERS.append(subprocess.Popen(command, stdin=quiet, stdout=out, stderr=out, start_new_session=True))
    except OSError as error:
        return f"none, for the cache folder cannot be written ({error.strerror})"
    return "being built beside this process, for the next start"


def sources() -> list[Path]:
    """The C++ files, headers last."""
    folder = Path(__file__).parent
    return [*sorted(folder.glob("*.cpp")), *sorted(folder.glob("*.h"))]


def library_file() -> Path:
    """The built operators, or where they will be."""
    parts = [torch.__version__, platform.machine(), *compiler_flags(), *(file.read_text() for file in sources())]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return home() / "native" / f"intaglio-{key}.so"


def build_log() -> Path:
    """What the last build said."""
    return library_file().with_suffix(".log")


def missing_tools() -> list[str]:
    """What a build needs and this machine does not have."""
    compiler = os.environ.get("CXX", "c++")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    return [tool for tool in (compiler, "ninja") if not shutil.which(tool, path=path)]


@functools.cache
def compiler_flags() -> tuple[str, ...]:
    """The compiler's options for those abilities of this processor that the operators use."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ()
    has = set(next((line for line in lines if line.startswith("flags")), "").split())
    used = [*_AVX2] if has.issuperset(_AVX2) else []
    if used and has.issuperset(_AVX512):
        used += [*_AVX512, *(flag.replace("_", "") for flag in _AVX512_PRODUCTS if flag in has)]
        used += [flag.replace("_", "-") for flag in _UNITS if has.issuperset(_UNITS)]
    return tuple(f"-m{flag}" for flag in used)
