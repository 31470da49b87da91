"""`intaglio export`: a model directory to another format."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from intaglio.cli import options
from intaglio.errors import UserError, nearest


def export(
    model: options.Model,
    gguf: Annotated[Path, typer.Option(help="The GGUF file to write; must not exist.")],
    kind: Annotated[str, typer.Option("--type", help="How matrices are stored: F16 or Q8_0.")] = "F16",
    json: options.Json = False,
) -> None:
    """Write a model as a GGUF file, which llama.cpp runs; merge an adapter first (`intaglio merge`)."""
    from intaglio.checkpoints.gguf_export import GGUF_KINDS, export_gguf

    if gguf.exists():
        raise UserError("exists already", where=str(gguf), mend="choose another file or remove it")
    if kind not in GGUF_KINDS:
        raise UserError(f"unknown type {kind!r}", where="--type", mend=nearest(kind, GGUF_KINDS))
    export_gguf(model, gguf, kind)
    report = {"path": str(gguf), "type": kind, "bytes": gguf.stat().st_size}
    print(json_module.dumps(report) if json else gguf)
