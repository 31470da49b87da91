"""`intaglio data`: look at data before training on it, and take it from one format to another."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intaglio.cli import options
from intaglio.cli.data_rank import rank
from intaglio.cli.tokenizing import chat_template, tokenizer_of
from intaglio.errors import UserError, nearest
from intaglio.files import whole_file

if TYPE_CHECKING:
    from intaglio.data.check import DataCheck
    from intaglio.data.formats import Format
    from intaglio.data.readers import Row

_FIRST = 200  # rows that tell what most have in common

app = typer.Typer(help="Training data: look at it, convert it, rank answers.", no_args_is_help=True)
app.command()(rank)

Source = Annotated[str, typer.Argument(help="A file, a folder or a glob: .jsonl .json .csv .parquet .txt, .gz, .zst.")]


@app.callback()
def _group() -> None:
    """Training data: look at it, convert it, rank answers."""


@app.command()
def check(
    file: Source,
    model: Annotated[str | None, typer.Option(help="A pulled name or a directory: encode as it would.")] = None,
    template: Annotated[str | None, typer.Option(help="For chats: a template of ours by name, or a file.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the rows without findings here (JSON Lines).")] = None,
    drop_near_duplicates: Annotated[
        bool, typer.Option("--drop-near-duplicates", help="Leave near-duplicates out of --out, too.")
    ] = False,
    max_length: Annotated[int | None, typer.Option(min=1, help="Most tokens of a row; default: the model's.")] = None,
    format: Annotated[str | None, typer.Option(help="What every row is; default: each by its keys.")] = None,
    as_json: options.Json = False,
) -> None:
    """What is wrong with a fine-tuning or preference set, row by row; changes nothing."""
    from intaglio.cli.data_report import as_data, print_report
    from intaglio.data.check import DataCheck
    from intaglio.data.readers import read_rows

    _refuse_idle(model, template, out, drop_near_duplicates, max_length)
    rows = read_rows(file, keep_going=True)
    tokenizer = None if model is None else tokenizer_of(model)
    chosen = None if template is None or tokenizer is None else chat_template(template, tokenizer)
    first = list(islice(rows, _FIRST))
    every = None if format is None else _format(format, "--format")
    data_check = DataCheck(tokenizer, chosen, max_length or _context(model), first, every)
    with _clean_copy(out) as keep:
        for row in chain(first, rows):
            problems = {finding.problem for finding in data_check.look(row)}
            if not problems - _kept(drop_near_duplicates):
                keep(row)
        for skipped in rows.skipped:
            data_check.skipped(skipped)
        _refuse_nothing(data_check, file)
    written = keep.written if out else None
    if as_json:
        typer.echo(json.dumps(as_data(data_check.report, written), indent=2, ensure_ascii=False))
    else:
        print_report(data_check.report, file, out, written)


@app.command()
def convert(
    source: Source,
    out: Annotated[Path, typer.Argument(help="The JSON Lines file to write; must not exist.")],
    to: Annotated[
        str, typer.Option(help="text, messages, prompt_completion, alpaca, sharegpt, preference or unpaired.")
    ],
    as_json: options.Json = False,
) -> None:
    """Rows from one format to another, where nothing is lost; else refused, with the reason."""
    from intaglio.data.conversion import convert as convert_rows
    from intaglio.data.readers import read_rows

    _refuse_to_overwrite(out)
    wanted = _format(to, "--to")
    rows = read_rows(source)
    count = 0
    with whole_file(out) as beside, beside.open("w", encoding="utf-8") as stream:
        for value in convert_rows(rows, wanted, rows.skipped):
            stream.write(_line(value, f"row {count}"))
            count += 1
    for skipped in rows.skipped:
        typer.echo(f"skipped {skipped.where}: {skipped.reason}", err=True)
    report = {"path": str(out), "format": to, "rows": count, "skipped": len(rows.skipped)}
    words = f"{count} {'row' if count == 1 else 'rows'} as {to} in {out}" + (
        f" ({len(rows.skipped)} skipped)" if rows.skipped else ""
    )
    typer.echo(json.dumps(report) if as_json else words)


def _refuse_idle(
    model: str | None, template: str | None, out: Path | None, drop_near_duplicates: bool, max_length: int | None
) -> None:
    """An option that would do nothing is refused."""
    for name, given in (("--template", template), ("--max-length", max_length)):
        if given is not None and model is None:
            raise UserError("needs a model's tokenizer", where=name, mend="name it with --model")
    if drop_near_duplicates and out is None:
        raise UserError("drops nothing without --out", where="--drop-near-duplicates")
    if out is not None:
        _refuse_to_overwrite(out)


def _format(name: str, where: str) -> "Format":
    from intaglio.data.formats import Format

    if name not in set(Format):
        raise UserError(f"there is no format {name!r}", where=where, mend=nearest(name, list(Format)))
    return Format(name)


def _refuse_to_overwrite(out: Path) -> None:
    if out.exists():
        raise UserError("exists already", where=str(out), mend="choose another file or remove it")
    if out.suffix != ".jsonl":
        raise UserError("we write JSON Lines", where=str(out), mend="end its name in .jsonl")


def _refuse_nothing(data_check: "DataCheck", file: str) -> None:
    if data_check.report.rows:
        return
    findings = data_check.report.findings
    if findings:
        raise UserError(f"no row can be read; the first: {findings[0].what}", where=findings[0].where)
    raise UserError("there are no rows", where=file)


def _kept(drop_near_duplicates: bool) -> frozenset[str]:
    from intaglio.data.check import KEPT_IN_CLEAN_COPY

    return KEPT_IN_CLEAN_COPY - ({"near duplicate"} if drop_near_duplicates else set())


def _context(model: str | None) -> int | None:
    """What the model can take, where its config says so."""
    from intaglio.lineage.resolve import resolve_spec

    try:
        return resolve_spec(model)[1].context_limit if model is not None else None
    except UserError:
        return None


class _Keeper:
    """Writes rows to a stream, if there is one, and counts them."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.written = 0

    def __call__(self, row: "Row") -> None:
        if self._stream is not None:
            self._stream.write(_line({"text": row.value} if isinstance(row.value, str) else row.value, row.where))
            self.written += 1


def _line(value: dict[str, Any], where: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False) + "\n"
    except TypeError as error:
        raise UserError(f"cannot be written as JSON: {error}", where=where) from error


@contextmanager
def _clean_copy(out: Path | None) -> Iterator[_Keeper]:
    if out is None:
        yield _Keeper(None)
        return
    with whole_file(out) as beside, beside.open("w", encoding="utf-8") as stream:
        yield _Keeper(stream)
