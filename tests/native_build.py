"""The native operators, for tests that compare them with plain torch: built once, into the folder runs share."""

import os
import subprocess
import sys

import pytest
import torch
from filelock import FileLock

from intaglio import native
from intaglio.native.library import missing_tools
from shared_cache import shared_home

__all__ = ["either_way", "native_file", "with_native"]

_PATIENCE = 900  # seconds; alone on a machine a build takes about 30


@pytest.fixture(scope="session")
def native_file() -> str:
    """The built operators, loaded into this process; nothing uses them before `with_native` says so."""
    missing = missing_tools()
    if missing:
        pytest.skip(f"no {' and '.join(missing)} to build the native operators with")
    folder = shared_home()
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "intaglio.native.build"]
    with FileLock(folder / ".native.lock"):
        environment = {**os.environ, "INTAGLIO_HOME": str(folder)}
        built = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, timeout=_PATIENCE, check=True
        )
    file = built.stdout.splitlines()[-1]
    torch.ops.load_library(file)
    return file


@pytest.fixture
def with_native(native_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the test, this process has the operators."""
    monkeypatch.setattr(native, "available", lambda: True)


@pytest.fixture(params=["plain torch", "native"])
def either_way(request: pytest.FixtureRequest) -> str:
    """The test without the operators, and with them; which."""
    if request.param == "native":
        request.getfixturevalue("with_native")
    return str(request.param)
