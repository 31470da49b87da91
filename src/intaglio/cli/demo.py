"""`intaglio demo`: the whole life of a real model, from the download to the plan of a cluster."""

import json as json_module
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intaglio.cli import options
from intaglio.errors import UserError

if TYPE_CHECKING:
    from intaglio.demo.board import Row

_NEEDED = {"fastapi": "FastAPI", "httpx2": "httpx2", "openai": "openai"}


def demo(
    quick: Annotated[bool, typer.Option("--quick", help="A third of the work: three minutes in place of ten.")] = False,
    out: Annotated[Path, typer.Option(help="Its folder; a demo that was stopped there is gone on with.")] = Path(
        "intaglio-demo"
    ),
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Pull a real model; measure, pretrain, fine-tune, align, merge, measure again, serve, load-test, plan, report."""
    _require()
    if threads:
        import torch

        torch.set_num_threads(threads)
    from intaglio.demo import board, life, page
    from intaglio.demo.stage import Desk
    from intaglio.demo.stages import STAGES
    from intaglio.files import whole_file

    desk = Desk(out.resolve(), quick, threads, _say, life.unfinished(out, STAGES, quick))
    found = life.live(desk, STAGES)
    table = board.rows(STAGES, found, quick, board.board_file())
    board.add(board.board_file(), table, quick)
    report = desk.folder / "report.html"
    with whole_file(report) as beside:
        beside.write_text(page.page(STAGES, found, table, _about()), encoding="utf-8")
    if json:
        places = {"report": str(report), "leaderboard": str(board.board_file())}
        print(json_module.dumps({"quick": quick, "table": table, "stages": found, **places}, ensure_ascii=False))
    else:
        _show(table)
        print(f"\nthe report: {report}\nthe leaderboard of this machine: {board.board_file()}")
        print(f"go on: .venv/bin/intaglio chat {found['pull']['path']}")


def _require() -> None:
    missing = [name for module, name in _NEEDED.items() if find_spec(module) is None]
    if missing:
        raise UserError(f"it needs {' and '.join(missing)}", where="demo", mend="pip install 'intaglio[demo]'")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _about() -> str:
    return f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores"


def _show(table: "Sequence[Row]") -> None:
    from rich.console import Console
    from rich.table import Table

    from intaglio.demo.page import value_of

    shown = Table("stage", "what", title="the whole life of a model")
    for head in ("number", "to beat", "seconds"):
        shown.add_column(head, justify="right")
    shown.add_column("whose")
    for row in table:
        number = f"[bold green]{value_of(row)}[/]" if row["beaten"] else value_of(row)
        shown.add_row(row["name"], row["what"], number, value_of(row, "beat"), f"{row['seconds']:.0f}", row["of"])
    Console(highlight=False).print(shown)
