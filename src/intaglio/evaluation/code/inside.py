"""What runs a program inside the sandbox: limits, silence, and a report that the program cannot give for it.

This file is not imported but sent whole to another interpreter, which may not be able to read it where it lies: it
knows the standard library alone. Its orders come as JSON on standard input: `program`, `token`, and `limits`, resource
names with their values. It answers on what was standard output: a line once it has begun, and one with the token and
what became of the program, "" where it ran to its end. A program that exits early, or prints whatever, has no token
to show; one that searched this interpreter's memory for it would find it, as it could make any test true.
"""

import json
import os
import resource
import sys
from contextlib import suppress

BEGUN = b"begun\n"


def main() -> None:
    """Carries the orders out."""
    orders = json.loads(sys.stdin.buffer.read())
    back = os.dup(1)
    os.write(back, BEGUN)
    for name, value in orders["limits"].items():
        _limit(getattr(resource, name), value)
    _silence()
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # should memory run out, this is what goes first
    report = {"token": orders["token"], "error": _error_of(orders["program"])}
    os.write(back, json.dumps(report).encode() + b"\n")
    os._exit(0)  # neither threads nor exit handlers of the program are waited for


def _error_of(program: str) -> str:
    try:
        exec(compile(program, "program", "exec"), {})
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:300].removesuffix(": ")
    return ""


def _limit(which: int, value: int) -> None:
    above = 1 if which == resource.RLIMIT_CPU else 0  # at the hard limit the kernel kills, and says no longer why
    _, most = resource.getrlimit(which)
    soft, hard = (one if most == resource.RLIM_INFINITY else min(one, most) for one in (value, value + above))
    with suppress(OSError, ValueError):  # some systems have no such limit; the wall clock outside always holds
        resource.setrlimit(which, (soft, hard))


def _silence() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)


if __name__ == "__main__":
    main()
