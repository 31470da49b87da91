"""What was measured, for other programs: one JSON document, a table of levels and one of requests as CSV."""

import csv
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from intaglio.evaluation.load.arrivals import OpenLoop
from intaglio.evaluation.load.prompts import RandomPrompts
from intaglio.evaluation.load.run import Measured, Plan
from intaglio.evaluation.load.target import Target
from intaglio.files import whole_file, write_json

__all__ = ["FORMAT", "document", "run_of", "write_folder"]

FORMAT = "intaglio-load/1"
_OF_SAMPLE = ("start", "sent", "end", "turn", "prompt_tokens", "cached_tokens", "output_tokens", "wanted_tokens")
_ABOUT_SAMPLE = ("ttft", "tpot", "latency", "lateness", "queue", "retries", "error")


def document(measured: Iterable[Measured], targets: Sequence[Target], plan: Plan) -> dict[str, Any]:
    """Everything but the single requests, and what is needed to repeat it."""
    return {
        "format": FORMAT,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"intaglio": version("intaglio"), "python": platform.python_version()},
        "settings": _settings(targets[0], plan),
        "runs": [run_of(one) for one in measured],
    }


def run_of(one: Measured) -> dict[str, Any]:
    """One server at one level: who, how much, and the summary."""
    arrivals = {"arrivals": one.level.moments.name} if isinstance(one.level, OpenLoop) else {}
    return {
        "name": one.name,
        "url": one.url,
        "model": one.model,
        one.level.kind: one.level.load,
        **arrivals,
        **one.summary,
    }


def _settings(target: Target, plan: Plan) -> dict[str, Any]:
    """What every server was asked."""
    prompts = plan.prompts
    told: dict[str, Any] = {"output_tokens": prompts.output_tokens.said, "seed": prompts.seed}
    if isinstance(prompts, RandomPrompts):
        told |= {"input_tokens": prompts.input_tokens.said, "turns": prompts.turns.said}
        told |= {"shared_prefix": prompts.shared, "prefixes": prompts.prefixes}
    else:
        told |= {"prompts": len(prompts.rows), "multi_turn": prompts.multi_turn}
    limits = {"requests": plan.requests, "duration_s": plan.duration, "warmup": plan.warmup}
    targets = plan.targets.said() if plan.targets else None
    asked = {"endpoint": target.endpoint, "fields": dict(target.fields), "timeout_s": target.timeout}
    return {**told, **limits, **asked, "retries": target.retries, "targets": targets}


def write_folder(folder: Path, found: Mapping[str, Any], measured: Sequence[Measured], page: str) -> None:
    """Writes `load.json`, `levels.csv`, `requests.csv` and the page `load.html`.

    Raises:
        UserError: the folder cannot be written.
    """
    write_json(folder / "load.json", found)
    _write_table(folder / "levels.csv", [_flat(run) for run in found["runs"]])
    _write_table(folder / "requests.csv", [_request(one, sample) for one in measured for sample in one.samples])
    with whole_file(folder / "load.html") as beside:
        beside.write_text(page, encoding="utf-8")


def _request(one: Measured, sample: Any) -> dict[str, Any]:
    told = {"name": one.name, one.level.kind: one.level.load}
    return told | {name: getattr(sample, name) for name in (*_OF_SAMPLE, *_ABOUT_SAMPLE)}


def _flat(run: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Figures within figures by their joint names; lists and the texts of errors are left to the JSON."""
    flat: dict[str, Any] = {}
    for name, value in run.items():
        if isinstance(value, Mapping):
            flat |= {} if name == "error_details" else _flat(value, f"{before}{name}.")
        elif not isinstance(value, list):
            flat[before + name] = value
    return flat


def _write_table(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with whole_file(file) as beside, beside.open("w", encoding="utf-8", newline="") as out:
        table = csv.DictWriter(out, columns)
        table.writeheader()
        table.writerows(rows)
