"""What is seen while a load test runs: on a terminal a table that is drawn anew, elsewhere a line a level."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Console

from intaglio.evaluation.load.run import Measured, Observer, Search

if TYPE_CHECKING:
    from rich.live import Live

    from intaglio.evaluation.load.arrivals import Level
    from intaglio.evaluation.load.latency import Sample
    from intaglio.evaluation.load.target import Target

__all__ = ["Lines", "observing"]

_EVERY = 1.0  # seconds between drawings: each takes four milliseconds of the loop that measures


class Lines(Observer):
    """A line on standard error for each level; remembers what was measured.

    Attributes:
        measured: the levels that are over.
    """

    def __init__(self) -> None:
        self.measured: list[Measured] = []

    def ends(self, measured: Measured) -> None:
        """See `Observer`."""
        self.measured.append(measured)
        self.says(f"{measured.name}: {measured.level.kind} {measured.level.load:g} measured")

    def finds(self, target: "Target", search: Search, load: float | None) -> None:
        """See `Observer`."""
        found = f"{search.kind} {load:g}" if load is not None else f"not even {search.kind} {search.low:g}"
        self.says(f"{target.name}: {found} keeps the targets")

    def says(self, line: str) -> None:
        """See `Observer`."""
        print(line, file=sys.stderr, flush=True)


class Drawn(Lines):
    """A table of the levels that are over, and below it the one that runs."""

    def __init__(self, live: "Live") -> None:
        super().__init__()
        self._live, self._drawn = live, 0.0
        self._title, self._count = "", 0
        self._begun, self._sent, self._over, self._failed, self._tokens = 0.0, 0, 0, 0, 0

    def begins(self, target: "Target", level: "Level", count: int | None) -> None:
        """See `Observer`."""
        self._title, self._count = f"{target.name}, {level.kind} {level.load:g}", count or 0
        self._begun, self._sent, self._over, self._failed, self._tokens = monotonic(), 0, 0, 0, 0
        self._draw()

    def sends(self) -> None:
        """See `Observer`."""
        self._sent += 1
        self._draw_sometimes()

    def sees(self, sample: "Sample") -> None:
        """See `Observer`."""
        self._over += 1
        self._failed += bool(sample.error)
        self._tokens += sample.output_tokens
        self._draw_sometimes()

    def ends(self, measured: Measured) -> None:
        """See `Observer`."""
        self.measured.append(measured)
        self._title = ""
        self._draw()

    def says(self, line: str) -> None:
        """See `Observer`."""
        self._live.console.print(line, markup=False, highlight=False)

    def _draw_sometimes(self) -> None:
        if monotonic() - self._drawn > _EVERY:
            self._draw()

    def _draw(self) -> None:
        from rich.console import Group
        from rich.text import Text

        from intaglio.cli.load_table import level_table
        from intaglio.evaluation.load.report import run_of

        names = dict.fromkeys(one.name for one in self.measured)
        tables = [level_table(name, [run_of(one) for one in self.measured if one.name == name]) for name in names]
        self._live.update(Group(*tables, Text(self._status())), refresh=True)
        self._drawn = monotonic()

    def _status(self) -> str:
        if not self._title:
            return ""
        passed = max(monotonic() - self._begun, 1e-9)
        of = f" of {self._count}" if self._count else ""
        running, failed = self._sent - self._over, f", {self._failed} failed" if self._failed else ""
        speed = f"{self._tokens / passed:.1f} tokens/s"
        return f"{self._title}: {self._over}{of} answered, {running} running{failed}, {speed}, {passed:.0f} s"


@contextmanager
def observing(quiet: bool) -> Iterator[Lines]:
    """An observer for this terminal; with `quiet`, or where there is none, one of lines."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield Lines()
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield Drawn(live)
