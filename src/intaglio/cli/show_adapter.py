"""`intaglio show ADAPTER`: what an adapter trains, and how much of its rank each layer uses."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from intaglio.lineage.units import short_bytes, short_count

if TYPE_CHECKING:
    from intaglio.adapters.ranks import AdapterSummary

__all__ = ["is_adapter", "show_adapter"]


def is_adapter(name: str) -> bool:
    """Whether a name is the directory of an adapter."""
    return (Path(name) / "adapter_config.json").is_file()


def show_adapter(path: Path, ranks: bool, as_json: bool) -> None:
    """Prints an adapter; with `ranks`, each of its modules."""
    from intaglio.adapters.ranks import summary_of

    summary = summary_of(path)
    if as_json:
        print(json.dumps(_as_data(path, summary), indent=2, ensure_ascii=False))
        return
    console = Console(highlight=False)
    console.print(_numbers(path, summary))
    if ranks:
        console.print(_ranks(summary))


def _as_data(path: Path, summary: "AdapterSummary") -> dict[str, Any]:
    return {
        "path": str(path),
        "base": summary.base,
        "num_parameters": summary.parameters,
        "base_parameters": summary.base_parameters,
        "trainable_share": summary.share,
        "bytes": summary.nbytes,
        "spec": summary.spec.plain(),
        "modules": [vars(module) for module in summary.modules],
    }


def _numbers(path: Path, summary: "AdapterSummary") -> Table:
    table = Table.grid(padding=(0, 2))
    spec, share = summary.spec, summary.share
    of_base = f"{share:.2%} of the base's {short_count(summary.base_parameters or 0)}" if share else "base not at hand"
    kind = "".join((", DoRA" if spec.use_dora else "", ", rank-stabilised" if spec.use_rslora else ""))
    mean = sum(m.effective_rank for m in summary.modules) / max(1, len(summary.modules))
    table.add_row("adapter", str(path))
    table.add_row("base", summary.base or "not said")
    table.add_row("LoRA", f"r {spec.r}, alpha {spec.lora_alpha:g}{kind}; {len(summary.modules)} modules")
    table.add_row("parameters", f"{summary.parameters:,} ({of_base})")
    table.add_row("bytes", short_bytes(summary.nbytes))
    table.add_row("effective rank", f"{mean:.1f} on average (exp of the entropy of an update's singular values)")
    return table


def _ranks(summary: "AdapterSummary") -> Table:
    table = Table("module", "r", "effective rank", "used", "norm of the update", box=None)
    for module in summary.modules:
        used = module.effective_rank / module.r
        row = (str(module.r), f"{module.effective_rank:.1f}", f"{used:.0%}", f"{module.norm:.3g}")
        table.add_row(module.module, *row)
    return table
