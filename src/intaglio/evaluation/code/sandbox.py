"""Where programs that a model wrote are run.

Two kinds. `Namespaces`, which Linux has: no network, no other processes in sight, every file system read-only but
for an empty one in memory, which vanishes with the program, and another user where we are root (else no rights of
ours beyond reading). `LimitsOnly`, which any system has: nothing but limits of time, memory, processes and file
sizes; it keeps mistakes off, not malice. Both give the program an empty environment and limits (see `inside`).
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Final, Protocol

from intaglio.errors import UserError
from intaglio.evaluation.code import inside

__all__ = ["DEFAULT", "Limits", "LimitsOnly", "Namespaces", "Sandbox", "Verdict", "find_sandbox"]

TIMED_OUT: Final = "timed out"
START: Final = 1.0
"""Seconds that a sandbox may take to begin with."""

_TOOLS: Final = ("unshare", "setpriv", "mount", "timeout", "sh")
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_STRANGERS: Final = (61184, 65519)
"""User ids that belong to nobody: those that systemd gives to services for as long as they run."""

# PID 1 stays this shell, whose death, should we die, ends all: a process that changes its user is not told any more.
_SETUP: Final = """
while read -r _ _ _ _ point _; do
    mount -o remount,bind,ro "$(printf %b "$point")" 2>/dev/null
done < /proc/self/mountinfo
set -e
mount -t proc -o nosuid,nodev,noexec proc /proc
for place in /run /var/tmp; do [ ! -d $place ] || mount -t tmpfs -o size=4k,mode=755,ro none $place; done
for place in /dev/shm /tmp; do mount -t tmpfs -o size=64m,mode=1777,nosuid,nodev none $place; done
cd /tmp
set +e
"$@"
exit $?
"""

_PROBE: Final = """
import os, socket
free = {"/proc", "/tmp", "/dev/shm"}
points = [line.split()[4].encode().decode("unicode_escape") for line in open("/proc/self/mountinfo")]
for point in points:
    assert point in free or os.statvfs(point).f_flag & os.ST_RDONLY, f"{point} can be written to"
for family, address in ((socket.AF_INET, ("192.0.2.1", 9)), (socket.AF_INET6, ("2001:db8::1", 9))):
    try:
        socket.socket(family, socket.SOCK_DGRAM).connect(address)
    except OSError:
        continue
    raise AssertionError("there is a network")
assert len([name for name in os.listdir("/proc") if name.isdigit()]) < 10, "other processes are in sight"
open("/tmp/file", "w").close()
"""


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    Attributes:
        seconds: from beginning to end; of computing too.
        memory: address space of each process, in bytes.
        file_bytes: of each file.
        processes: at once, threads included.
    """

    seconds: float = 5.0
    memory: int = 1 << 30
    file_bytes: int = 16 << 20
    processes: int = 8

    def by_name(self) -> dict[str, int]:
        """As the resource module calls them."""
        cpu = int(self.seconds) + 1
        own = {"RLIMIT_AS": self.memory, "RLIMIT_FSIZE": self.file_bytes, "RLIMIT_NPROC": self.processes}
        return {**own, "RLIMIT_CPU": cpu, "RLIMIT_NOFILE": 64, "RLIMIT_CORE": 0}


DEFAULT: Final = Limits()


@dataclass(frozen=True)
class Verdict:
    """What became of a program: it ran to its end, or why not."""

    passed: bool
    why: str = ""


class Sandbox(Protocol):
    """Runs programs.

    Attributes:
        name: for results.
    """

    name: str

    def run(self, program: str, limits: Limits = DEFAULT) -> Verdict:
        """Runs Python text; it passes where it gets to its end without an exception.

        Raises:
            UserError: the sandbox itself does not start.
        """


class Namespaces:
    """See above.

    Args:
        python: an interpreter that a stranger can run.
        stranger: whether programs run as a user of their own, for which we must be root.
    """

    def __init__(self, python: str, *, stranger: bool) -> None:
        self.name = "namespaces"
        self._python, self._stranger = python, stranger

    def run(self, program: str, limits: Limits = DEFAULT) -> Verdict:
        """See `Sandbox`."""
        clock = ("timeout", "-s", "KILL", f"{limits.seconds + 2 * START:g}")  # should we be gone by then
        shell = ("sh", "-c", _SETUP, "sh", *clock, *self._lowered())
        return _run([*self._apart(), *shell, self._python], program, limits)

    def _apart(self) -> list[str]:
        mapped = [] if self._stranger else ["--user", "--map-root-user"]
        return ["unshare", *mapped, "--mount", "--net", "--ipc", "--pid", "--fork", "--kill-child"]

    def _lowered(self) -> list[str]:
        first, last = _STRANGERS
        user = str(first + secrets.randbelow(last - first + 1))
        changed = ["--reuid", user, "--regid", user, "--clear-groups"] if self._stranger else []
        return ["setpriv", *changed, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]


class LimitsOnly:
    """See above."""

    def __init__(self) -> None:
        self.name = "limits only"

    def run(self, program: str, limits: Limits = DEFAULT) -> Verdict:
        """See `Sandbox`."""
        return _run([sys.executable], program, limits)


def find_sandbox(*, weaker: bool = False) -> Sandbox:
    """The best sandbox of this machine, which has proved itself.

    Args:
        weaker: whether limits alone will do where there is no other.

    Raises:
        UserError: there is none; says why.
    """
    found = _proved_namespaces()
    if isinstance(found, Namespaces):
        return found
    if weaker:
        return LimitsOnly()
    mend = "use Linux as root or with user namespaces, or allow a weaker one, which sets limits but hides nothing"
    raise UserError(f"programs of a model need a sandbox, and there is none here: {found}", mend=mend)


@cache
def _proved_namespaces() -> Namespaces | str:
    """One that let nothing out, or why there is none."""
    lacking = [tool for tool in _TOOLS if shutil.which(tool, path=_PATH) is None]
    if lacking:
        return f"no `{lacking[0]}`"
    why = "no Python"
    for python in _pythons():
        sandbox = Namespaces(python, stranger=os.geteuid() == 0)
        try:
            verdict = sandbox.run(_PROBE)
        except UserError as error:
            why = error.what
            continue
        if verdict.passed:
            return sandbox
        why = verdict.why
    return why


def _pythons() -> Iterator[str]:
    """Our own interpreter, then those that anybody can run."""
    yield from dict.fromkeys(filter(None, (os.path.realpath(sys.executable), shutil.which("python3", path=_PATH))))


def _run(command: Sequence[str], program: str, limits: Limits) -> Verdict:
    token = secrets.token_hex(16)
    orders = json.dumps({"program": program, "token": token, "limits": limits.by_name()})
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as back, tempfile.TemporaryFile() as trouble:
        told.write(orders.encode("utf-8", "surrogatepass"))
        told.seek(0)
        ended = _wait([*command, "-I", "-S", "-c", _inside()], (told, back, trouble), limits.seconds)
        return _verdict(ended, token, _tail(back), _tail(trouble))


def _wait(command: Sequence[str], streams: tuple[IO[bytes], IO[bytes], IO[bytes]], seconds: float) -> int | None:
    """The exit status; None where time ran out. Whatever the program left running is ended."""
    reads, writes, complains = streams
    with tempfile.TemporaryDirectory() as empty:
        process = subprocess.Popen(
            command,
            stdin=reads,
            stdout=writes,
            stderr=complains,
            cwd=empty,
            env={"PATH": _PATH, "HOME": "/tmp", "LANG": "C.UTF-8"},
            start_new_session=True,
        )
        try:
            return process.wait(seconds + START)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _verdict(ended: int | None, token: str, told: bytes, trouble: bytes) -> Verdict:
    begun, _, rest = told.partition(inside.BEGUN)
    if begun or not told:
        why = trouble.decode(errors="replace").strip().splitlines() or [TIMED_OUT if ended is None else f"exit {ended}"]
        raise UserError(f"the sandbox does not start ({why[-1]})")
    for line in rest.splitlines():
        with suppress(ValueError):
            report = json.loads(line)
            if isinstance(report, dict) and report.get("token") == token:
                return Verdict(not report["error"], report["error"])
    if ended is None or ended in (-signal.SIGXCPU, 128 + signal.SIGXCPU):
        return Verdict(False, TIMED_OUT)
    return Verdict(False, f"ended before its tests did (exit status {ended})")


def _tail(file: IO[bytes]) -> bytes:
    """The file, or its beginning and its end where it is long."""
    file.seek(0, os.SEEK_END)
    size, most = file.tell(), 1 << 16
    file.seek(0)
    start = file.read(most)
    file.seek(max(size - most, file.tell()))
    return start + file.read(most)


@cache
def _inside() -> str:
    return Path(inside.__file__).read_text(encoding="utf-8")
