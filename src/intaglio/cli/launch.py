"""`intaglio launch`: a recipe over many processes, here, under Slurm or on Kubernetes."""

import json as json_module
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from intaglio.cli import options
from intaglio.errors import UserError


def launch(
    recipe: Annotated[Path, typer.Argument(help="A recipe with a parallel block.")],
    changes: Annotated[list[str] | None, typer.Argument(help="out=DIR and key=value changes to the recipe.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Machines; default: one for every eight ranks.")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="Devices of each, a rank to a device; default: what comes out even.")
    ] = None,
    max_restarts: Annotated[int, typer.Option(min=0, help="How often all ranks start anew after one has died.")] = 4,
    run: Annotated[bool, typer.Option("--run", help="Run it here.")] = False,
    slurm: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a script for sbatch.")] = None,
    time: Annotated[str, typer.Option(help="How long Slurm lets it run.")] = "24:00:00",
    kubernetes: Annotated[Path | None, typer.Option(metavar="FILE", help="Write objects for kubectl apply.")] = None,
    kind: Annotated[Literal["jobset", "pytorchjob"], typer.Option(help="Which of Kubernetes' jobs.")] = "jobset",
    image: Annotated[str, typer.Option(help="Kubernetes: the container image, with intaglio in it.")] = "intaglio",
    claim: Annotated[
        str, typer.Option(help="Kubernetes: the volume claim all machines share; paths are paths in it.")
    ] = "intaglio",
    json: options.Json = False,
) -> None:
    """Print the torchrun line of a recipe, run it, or write it for a cluster."""
    from intaglio.cli import launch_files
    from intaglio.cli.launch_plan import plan_launch
    from intaglio.files import whole_file

    if run and (slurm or kubernetes):
        raise UserError("runs here, and writes nothing for a cluster", where="--run", mend="leave one of the two out")
    planned = plan_launch(recipe, changes or [], nodes, gpus_per_node, max_restarts)
    if run:
        command, environment = planned.here()
        sys.stdout.flush()
        os.execve(command[0], command, environment)
    written: dict[Path, str] = {}
    if slurm:
        written[slurm] = launch_files.slurm(planned, time)
    if kubernetes:
        written[kubernetes] = launch_files.kubernetes(planned, kind, image, claim)
    for path, text in written.items():
        with whole_file(path) as beside:
            beside.write_text(text, encoding="utf-8")
    if json:
        arguments = ["torchrun", *planned.torchrun(), *planned.train()]
        told = {
            "world": planned.world,
            "nodes": planned.nodes,
            "per_node": planned.per_node,
            "arguments": arguments,
            "environment": planned.environment,
            "files": [str(path) for path in written],
        }
        print(json_module.dumps(told, ensure_ascii=False))
    else:
        print(*(written or [planned.line()]), sep="\n")
