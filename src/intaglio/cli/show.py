"""`intaglio show`: one model in full, by arithmetic alone."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from intaglio.cli.show_adapter import is_adapter, show_adapter
from intaglio.cli.show_kind import kind_data, print_kind
from intaglio.errors import UserError
from intaglio.lineage.costs import Costs, costs, usual_context
from intaglio.lineage.presets import Preset
from intaglio.lineage.resolve import model_folder, resolve_spec
from intaglio.lineage.units import short_bytes, short_count, short_flops
from intaglio.lineage.words import embeddings_in_words, layers_in_words, picture
from intaglio.specs import ModelSpec

__all__ = ["show"]


def show(
    model: Annotated[
        str, typer.Argument(help="A preset, a directory with config.json, a pulled model, or an adapter's directory.")
    ],
    context: Annotated[
        int | None, typer.Option(help="Tokens of one sequence; 2048, or all the model can take, if not given.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Element type of the KV cache.")] = "bfloat16",
    probe: Annotated[
        bool, typer.Option("--probe", help="Ask the weights, too, whether they have learned to answer.")
    ] = False,
    rank: Annotated[bool, typer.Option("--rank", help="Of an adapter: how much of its rank each module uses.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What a model is made of: its parts, parameters, KV cache and FLOPs; and whether it is base or instruct."""
    if is_adapter(model):
        show_adapter(Path(model), rank, as_json)
        return
    if rank:
        raise UserError("only an adapter has a rank", where="--rank", mend="give the directory of an adapter")
    title, spec, preset = resolve_spec(model)
    context = usual_context(spec) if context is None else context
    cost = costs(spec, context, dtype)
    kind = kind_data(model_folder(model), probe)
    if as_json:
        data = {**_as_data(title, spec, preset, cost, context, dtype), "kind": kind}
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    console = Console(highlight=False)
    _print_head(console, title, preset)
    console.print(Padding(_numbers(cost, preset, context, dtype), (1, 0, 1, 2)))
    print_kind(console, kind)
    _print_parts(console, spec)
    if preset:
        _print_story(console, preset)


def _as_data(
    title: str, spec: ModelSpec, preset: Preset | None, cost: Costs, context: int, dtype: str
) -> dict[str, object]:
    return {
        "title": title,
        "preset": preset.name if preset else None,
        "year": preset.year if preset else None,
        **asdict(cost),
        "published_parameters": preset.published if preset else None,
        "published_active_parameters": preset.published_active if preset else None,
        "context": context,
        "dtype": dtype,
        "source": preset.generation.source if preset else None,
        "changed": preset.generation.changed if preset else None,
        "note": preset.note if preset else None,
        "spec": spec.plain(),
    }


def _print_head(console: Console, title: str, preset: Preset | None) -> None:
    if preset is None:
        console.print(Text(title, style="bold"))
        return
    console.print(Text(preset.name, style="bold"), Text(f"{title}, {preset.year}"))
    console.print(Text(preset.generation.source, style="dim"))


def _numbers(cost: Costs, preset: Preset | None, context: int, dtype: str) -> Table:
    """Rows of: what, the number in short, the rest."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column()
    published = _published(preset.published_as if preset else None)
    table.add_row("parameters", short_count(cost.num_parameters), f"{cost.num_parameters:,}{published}")
    if cost.num_active_parameters != cost.num_parameters:
        published = _published(preset.published_active_as if preset else None)
        share = f"{cost.num_active_parameters:,} met by one token{published}"
        table.add_row("active", short_count(cost.num_active_parameters), share)
    table.add_row("KV cache", short_bytes(cost.kv_bytes_per_token), f"a token in {dtype}")
    table.add_row("", short_bytes(cost.kv_cache_bytes), f"for one sequence of {context} tokens")
    table.add_row("FLOPs", short_flops(cost.flops_per_token), f"a token, forward, in a sequence of {context}")
    return table


def _published(count: str | None) -> str:
    return f"; published {count}" if count else ""


def _print_parts(console: Console, spec: ModelSpec) -> None:
    console.print(f"[bold]Embeddings[/] and [bold]{spec.num_layers} layers[/]")
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row("", embeddings_in_words(spec))
    for row in layers_in_words(spec):
        table.add_row(*row)
    console.print(Padding(table, (0, 0, 1, 2)))
    drawn = Text(picture(spec), no_wrap=True, overflow="crop", style="cyan")
    console.print(Padding(drawn, (0, 0, 0, 2)))


def _print_story(console: Console, preset: Preset) -> None:
    console.print("\n[bold]What it took away or changed, and why[/]")
    console.print(Padding(preset.generation.changed, (0, 0, 0, 2)))
    if preset.note:
        console.print("\n[bold]Counted and published[/]")
        console.print(Padding(preset.note, (0, 0, 0, 2)))
