"""`intaglio diff`: what differs between two models, and what that costs."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from intaglio.lineage.compare import Change, Comparison, compare
from intaglio.lineage.costs import usual_context
from intaglio.lineage.resolve import resolve_spec
from intaglio.lineage.units import short_bytes, short_count, short_flops

__all__ = ["diff"]

COSTS: dict[str, tuple[str, Callable[[int], str]]] = {
    "num_parameters": ("parameters", short_count),
    "num_active_parameters": ("active parameters", short_count),
    "kv_bytes_per_token": ("KV cache, one token", short_bytes),
    "kv_cache_bytes": ("KV cache, {context} tokens", short_bytes),
    "flops_per_token": ("FLOPs a token", short_flops),
}


def diff(
    old: Annotated[str, typer.Argument(metavar="A", help="A preset, a directory with config.json, or a pulled model.")],
    new: Annotated[str, typer.Argument(metavar="B", help="The same.")],
    context: Annotated[
        int | None, typer.Option(help="Tokens of one sequence; 2048, or all that both can take, if not given.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Element type of the KV cache.")] = "bfloat16",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The parts that differ from A to B, and what the difference does to parameters, KV cache and FLOPs."""
    (_, a, _), (_, b, _) = resolve_spec(old), resolve_spec(new)
    context = usual_context(a, b) if context is None else context
    comparison = compare(a, b, context, dtype)
    if as_json:
        typer.echo(json.dumps(_as_data(comparison, context, dtype), indent=2, ensure_ascii=False))
        return
    console = Console(highlight=False, markup=False)  # names are the user's
    if not comparison.differences:
        console.print(f"{old} and {new} are the same model.")
        return
    console.print(_differences(comparison, old, new))
    console.print(_changes(comparison.changes, old, new, context))
    console.print(f"Cache in {dtype}; FLOPs forward, in a sequence of {context} tokens.", style="dim")


def _as_data(comparison: Comparison, context: int, dtype: str) -> dict[str, Any]:
    return {
        "differences": [asdict(one) for one in comparison.differences],
        "costs": {one.name: {"old": one.old, "new": one.new, "ratio": one.ratio} for one in comparison.changes},
        "context": context,
        "dtype": dtype,
    }


def _differences(comparison: Comparison, old: str, new: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("part", overflow="fold")
    table.add_column(old, overflow="fold")
    table.add_column(new, overflow="fold")
    for one in comparison.differences:
        table.add_row(one.path, _word(one.old), _word(one.new))
    return table


def _word(value: Any) -> str:
    """A value of a spec as people say it."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.0f}" if value.is_integer() else f"{value:.6g}"
        case dict():
            return _part(value)
        case list():
            total = sum(one["layers"] for one in value)
            return ", ".join(f"{_word(one['value'])} ({one['layers']} of {total})" for one in value)
    return str(value)


def _part(part: dict[str, Any]) -> str:
    """A whole part: its kind, then what it has."""
    has = {key: value for key, value in part.items() if key != "kind" and value not in (None, False)}
    words = [str(part["kind"])] if "kind" in part else []
    for key, value in has.items():
        if isinstance(value, dict):
            inside = _part(value)
            words += [f"{key} ({inside})"] if inside else []
        else:
            words.append(key if value is True else f"{key} {_word(value)}")
    return ", ".join(words)


def _changes(changes: list[Change], old: str, new: str, context: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("cost")
    for name in (old, new, "ratio"):
        table.add_column(name, justify="right")
    for one in changes:
        title, short = COSTS[one.name]
        ratio = "" if one.ratio is None else f"x {one.ratio:.3g}"
        table.add_row(title.format(context=context), short(one.old), short(one.new), ratio)
    return table
