"""What is seen while a load test runs."""

import io

import pytest
from rich.console import Console
from rich.live import Live

from intaglio.cli.load_live import Drawn, Lines, observing
from intaglio.evaluation.load.arrivals import ClosedLoop
from intaglio.evaluation.load.latency import Sample
from intaglio.evaluation.load.run import Measured, Plan, Search, summarise
from intaglio.evaluation.load.target import Target

TARGET = Target("http://x", "m")


def answered(error: str = "") -> Sample:
    return Sample(0.0, 8, None, [0.5, 1.0], 1.0, 1.0, 3, 8, error=error)


def measured(level: int) -> Measured:
    return Measured("x", "http://x", "m", ClosedLoop(level), [], summarise([answered()], Plan()))


def test_where_there_is_no_terminal_a_level_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with observing(quiet=False) as observer:
        assert type(observer) is Lines
        observer.ends(measured(4))
        observer.finds(TARGET, Search("rate", 0.5), 2.5)
        observer.finds(TARGET, Search("rate", 0.5), None)
    assert observer.measured[0].level == ClosedLoop(4)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "x: concurrency 4 measured",
        "x: rate 2.5 keeps the targets",
        "x: not even rate 0.5 keeps the targets",
    ]


def test_on_a_terminal_what_runs_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    seconds = iter(2.0 * second for second in range(100))
    monkeypatch.setattr("intaglio.cli.load_live.monotonic", lambda: next(seconds))
    with Live(console=Console(file=screen, force_terminal=True, width=100), auto_refresh=False) as live:
        observer = Drawn(live)
        observer.begins(TARGET, ClosedLoop(2), 7)
        observer.sends()
        observer.sends()
        observer.sees(answered())
        observer.sends()
        observer.sees(answered("timeout"))
        last = screen.getvalue().splitlines()[-1]
        observer.ends(measured(2))
    for words in ("x, concurrency 2: 2 of 7 answered, 1 running, 1 failed, ", "tokens/s"):
        assert words in last
    assert "2 at once" in screen.getvalue()
    assert [one.level for one in observer.measured] == [ClosedLoop(2)]
