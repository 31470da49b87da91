"""What programs of a model can do: finish, and no harm."""

import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.code import sandbox as module
from intaglio.evaluation.code.sandbox import Limits, LimitsOnly, Sandbox, Verdict, find_sandbox

QUICK = Limits(seconds=0.5)
EARLY = "ended before its tests did (exit status 0)"


@pytest.fixture(scope="module")
def box() -> Sandbox:
    """The sandbox of this machine."""
    try:
        return find_sandbox()
    except UserError as error:
        pytest.skip(f"no namespaces here: {error}")


@pytest.fixture(params=["namespaces", "limits only"])
def any_box(request: pytest.FixtureRequest) -> Sandbox:
    """Both kinds: what limits alone can hold, both must."""
    if request.param == "limits only":
        return LimitsOnly()
    return request.getfixturevalue("box")


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("assert 1 + 1 == 2", ""),
        ("assert 1 + 1 == 3, 'two'", "AssertionError: two"),
        ("def f(:", "SyntaxError"),
        ("import sys\nsys.exit(0)", "SystemExit: 0"),
        ("import os\nos._exit(0)", EARLY),
        ("import os, sys\nprint('passes')\nos.write(1, b'begun\\n{}')\nos._exit(0)", EARLY),
        ('import os\nos.write(3, b\'{"token": "", "error": ""}\\n\')\nos._exit(0)', EARLY),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "ended before"),
        ("import atexit\natexit.register(print)\n1 / 0", "ZeroDivisionError"),
        ("x = bytearray(3 << 30)", "MemoryError"),
        ("with open('big', 'wb') as f:\n    f.write(b'x' * (20 << 20))", "OSError: [Errno 27]"),
        ("import sys\nassert sys.stdin.read() == ''", ""),
        ("import os\nassert not {'SECRET', 'PYTHONPATH'} & set(os.environ)", ""),
        ("with open('file', 'w') as f:\n    f.write('x')\nassert open('file').read() == 'x'", ""),
        ("'\ud800'", "UnicodeEncodeError"),
    ],
)
def test_what_becomes_of_a_program(
    any_box: Sandbox, program: str, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.chdir(tmp_path)
    verdict = any_box.run(program)
    assert verdict.passed == (not why)
    assert verdict.why.startswith(why)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", ["while True:\n    pass", "import time\ntime.sleep(60)"])
def test_time_runs_out(any_box: Sandbox, program: str) -> None:
    assert any_box.run(program, QUICK) == Verdict(False, "timed out")


def test_a_fork_bomb_stays_small_and_ends(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getpid() % 4000
    monkeypatch.setattr(secrets, "randbelow", lambda above: own)
    count = "import os, time\nmade = 0\nwhile made < 64:\n    if os.fork() == 0:\n        time.sleep(60)\n    made += 1"
    assert box.run(count, QUICK).why.startswith("BlockingIOError")
    bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    assert box.run(bomb, QUICK) == Verdict(False, "timed out")
    patience = time.monotonic() + 5  # they are told to die, and take a moment
    while _processes_of(61184 + own) and time.monotonic() < patience:
        time.sleep(0.02)
    assert _processes_of(61184 + own) == []


def test_there_is_no_network(box: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 1)"
        assert LimitsOnly().run(program).passed
        assert box.run(program).why.startswith("OSError: [Errno 101]")


def test_nothing_outside_is_written_or_left(box: Sandbox, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    file = tmp_path / "file"
    written = f"import os\nos.makedirs({str(tmp_path)!r}, exist_ok=True)\nopen({str(file)!r}, 'w').write('x')"
    assert LimitsOnly().run(written).passed
    file.unlink()
    box.run(written)
    assert not file.exists()
    for place in (Path(__file__).parent / "file", Path("/var/tmp/file"), Path("/dev/file")):
        assert "Error" in box.run(f"open({str(place)!r}, 'w')").why
        assert not place.exists()
    assert box.run("import os\nassert os.listdir('.') == [] and os.listdir('/dev/shm') == []").passed


def test_nobody_else_is_in_sight(box: Sandbox) -> None:
    assert box.run(f"import os\nos.kill({os.getpid()}, 9)").why.startswith("ProcessLookupError")
    if os.geteuid() == 0:
        assert box.run("import os\nassert os.getuid() >= 61184").passed


def test_where_there_is_none_it_says_so(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name == "unshare" else name)
    with pytest.raises(UserError, match="there is none here: no `unshare`"):
        find_sandbox()
    assert isinstance(find_sandbox(weaker=True), LimitsOnly)


def test_one_that_lets_something_out_is_not_believed(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    monkeypatch.setattr(module, "_SETUP", '"$@"\nexit $?')
    with pytest.raises(UserError, match="can be written to"):
        find_sandbox()


def test_one_that_does_not_start_is_no_failed_program(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETUP", "echo no mount >&2\nexit 1")
    with pytest.raises(UserError, match=r"does not start \(no mount\)"):
        box.run("pass")


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing is remembered, before and after."""
    module._proved_namespaces.cache_clear()
    yield
    module._proved_namespaces.cache_clear()


def _processes_of(user: int) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found += [path.name] if path.stat().st_uid == user else []
    return found
