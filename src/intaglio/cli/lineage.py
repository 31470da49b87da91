"""`intaglio lineage`: the family tree."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from intaglio.lineage import Generation, Preset, family_tree
from intaglio.lineage.costs import costs, usual_context
from intaglio.lineage.units import short_bytes, short_count, short_flops
from intaglio.lineage.words import parts_in_words

__all__ = ["lineage"]

DTYPE = "bfloat16"


def lineage(
    every_size: Annotated[bool, typer.Option("--all", help="Every size, not one a generation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The family tree, and what each generation took away or changed."""
    tree = family_tree()
    if as_json:
        rows = [_as_data(one) for _, generation in tree for one in _sizes(generation, every_size)]
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    console = Console(highlight=False)
    console.print(_table(tree, every_size))
    console.print(
        f"KV: bytes (K is 1024) that one more token adds to the cache in {DTYPE}. FLOPs: forward, for a token in a "
        "sequence of 2048, or of what the model can take.",
        style="dim",
    )
    console.print("\n[bold]What each took away or changed, and why[/]")
    for _, generation in tree:
        console.print(f"[bold]{generation.title}[/] [dim]{generation.year}[/]")
        console.print(Padding(generation.changed, (0, 0, 0, 2)))


def _sizes(generation: Generation, every_size: bool) -> list[Preset]:
    return [one for one in generation.presets if every_size or one.name == generation.representative]


def _as_data(preset: Preset) -> dict[str, Any]:
    context = usual_context(preset.spec)
    return {
        "name": preset.name,
        "title": preset.title,
        "year": preset.year,
        "generation": preset.generation.name,
        "parent": preset.generation.parent,
        "parts": parts_in_words(preset.spec),
        **asdict(costs(preset.spec, context, DTYPE)),
        "published_parameters": preset.published,
        "context": context,
        "dtype": DTYPE,
        "changed": preset.generation.changed,
        "note": preset.note,
    }


def _table(tree: list[tuple[str, Generation]], every_size: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    table.add_column("year")
    table.add_column("model", no_wrap=True)
    for number in ("params", "active", "KV", "FLOPs"):
        table.add_column(number, justify="right", no_wrap=True)
    table.add_column("parts", ratio=1)
    for lines, generation in tree:
        for name, preset in _named(lines, _sizes(generation, every_size)):
            table.add_row(str(preset.year), name, *_numbers(preset), ", ".join(parts_in_words(preset.spec)))
    return table


def _named(lines: str, sizes: list[Preset]) -> Iterator[tuple[str, Preset]]:
    """Each size with the lines of the tree before its name; below the first, the branch goes on or has ended."""
    for preset in sizes:
        yield f"[dim]{lines}[/]{preset.name}", preset
        lines = lines.replace("├", "│").replace("└", " ")


def _numbers(preset: Preset) -> tuple[str, str, str, str]:
    cost = costs(preset.spec, usual_context(preset.spec), DTYPE)
    return (
        short_count(cost.num_parameters),
        short_count(cost.num_active_parameters),
        short_bytes(cost.kv_bytes_per_token).replace(" ", "").replace("iB", ""),
        short_flops(cost.flops_per_token),
    )
