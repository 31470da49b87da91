"""`intaglio convert`: a GGUF file to a complete model directory."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from intaglio.cli import options
from intaglio.errors import UserError


def convert(
    file: Annotated[Path, typer.Argument(help="A GGUF file.")],
    directory: Annotated[Path, typer.Argument(help="The folder to write; must not exist.")],
    dtype: Annotated[str, typer.Option(help="Of the weights written: bfloat16, float16 or float32.")] = "bfloat16",
    json: options.Json = False,
) -> None:
    """Turn a GGUF file into a model directory that transformers opens too."""
    from intaglio.checkpoints.convert import convert_gguf

    if directory.exists():
        raise UserError("exists already", where=str(directory), mend="choose another folder or remove it")
    if not file.is_file():
        raise UserError("no such file", where=str(file))
    convert_gguf(file, directory, dtype)
    print(json_module.dumps({"path": str(directory)}) if json else directory)
