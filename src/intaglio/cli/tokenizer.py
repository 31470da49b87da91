"""`intaglio tokenizer train`: a byte-level BPE of one's own."""

import json as json_module
import sys
from pathlib import Path
from typing import Annotated

import typer

from intaglio.cli import options
from intaglio.errors import UserError

app = typer.Typer(help="Tokenizers of one's own.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Tokenizers of one's own."""


@app.command()
def train(
    folder: Annotated[Path, typer.Argument(help="A folder of UTF-8 text files, searched to the bottom.")],
    out: Annotated[Path, typer.Option(help="The folder to write; must not exist.")],
    vocab_size: Annotated[int, typer.Option(help="Tokens, the special ones and 256 bytes included.")] = 8192,
    special: Annotated[list[str] | None, typer.Option(help="Special tokens; the first ends a text.")] = None,
    json: options.Json = False,
) -> None:
    """Learn a byte-level BPE tokenizer from the text files of a folder."""
    from intaglio.files import whole_directory
    from intaglio.text.train import train_tokenizer

    if out.exists():
        raise UserError("exists already", where=str(out), mend="choose another folder or remove it")
    result = train_tokenizer(folder, vocab_size, special or ("<|endoftext|>",))
    with whole_directory(out) as beside:
        result.tokenizer.save(beside)
    for skipped in result.skipped:
        print(f"skipped {skipped.path}: {skipped.reason}", file=sys.stderr)
    report = {
        "path": str(out),
        "vocab_size": result.tokenizer.vocab_size,
        "files": len(result.files),
        "skipped": len(result.skipped),
    }
    words = f"{report['vocab_size']} tokens from {report['files']} files ({report['skipped']} skipped) in {out}"
    print(json_module.dumps(report) if json else words)
