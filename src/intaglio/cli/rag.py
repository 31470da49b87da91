"""`intaglio rag`: answers from your own documents. Here the folder becomes an index; the rest is in `rag_ask`."""

import json as json_module
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intaglio.cli import options, rag_ask

if TYPE_CHECKING:
    from intaglio.retrieval.indexing import Report

app = typer.Typer(help="Answers from your own documents: index a folder, search it, ask it.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Answers from your own documents: index a folder, search it, ask it."""


@app.command()
def index(
    folder: Annotated[
        Path, typer.Argument(help="The documents: text, Markdown, HTML, PDF, docx, tables, source code.")
    ],
    out: Annotated[Path, typer.Option(help="The index: a directory to make, or one made before, to renew.")],
    embedder: Annotated[
        str | None, typer.Option(help="What embeds: a pulled name, a directory, a hub id. Default: all-minilm-l6-v2.")
    ] = None,
    chunk_tokens: Annotated[int, typer.Option(min=20, help="Tokens of a passage, about.")] = 200,
    max_mb: Annotated[int, typer.Option("--max-mb", min=1, help="Leave out files that are larger.")] = 32,
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Index a folder, or what has changed in it since; may be interrupted at any time and goes on from there."""
    import torch

    from intaglio.retrieval.embedder import DEFAULT_EMBEDDER, load_embedder
    from intaglio.retrieval.indexing import index_folder

    if threads:
        torch.set_num_threads(threads)
    visible = sys.stderr.isatty() and not json
    model = load_embedder(embedder or DEFAULT_EMBEDDER, say=lambda line: print(line, file=sys.stderr), progress=visible)
    with _progress(visible) as watch:
        report = index_folder(folder, out, model, chunk_tokens=chunk_tokens, most_bytes=max_mb * 1_000_000, watch=watch)
    if json:
        print(json_module.dumps(_as_data(report, folder, out), indent=2, ensure_ascii=False))
    else:
        _print(report, out)


app.command()(rag_ask.search)
app.command()(rag_ask.ask)
app.command("eval")(rag_ask.evaluate)
app.command()(rag_ask.questions)


@contextmanager
def _progress(visible: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar over the bytes of the files that have changed."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("indexing"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not visible) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _as_data(report: "Report", folder: Path, out: Path) -> dict[str, Any]:
    speed = report.embedded / report.embedding_seconds if report.embedding_seconds else None
    data = {"folder": str(folder), "index": str(out)} | asdict(report)
    return data | {"texts_per_second": round(speed, 2) if speed else None}


def _print(report: "Report", out: Path) -> None:
    """What was done, then what was left out: files of other kinds by number, the rest by name."""
    print(f"{out}: {report.chunks} passages; {report.indexed} files read, {report.unchanged} unchanged", end="")
    print(f", {report.removed} removed" if report.removed else "")
    if report.embedded:
        speed = report.embedded / max(report.embedding_seconds, 1e-9)
        print(f"{report.embedded} passages embedded, {speed:.1f} a second; {report.seconds:.1f} s in all")
    others = Counter(one.reason for one in report.left_out if one.other_kind)
    for reason, count in others.most_common():
        print(f"left out: {count} {'file' if count == 1 else 'files'} {reason}")
    for one in report.left_out:
        if not one.other_kind:
            print(f"left out: {one.file}: {one.reason}")
