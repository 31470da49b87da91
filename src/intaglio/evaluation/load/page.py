"""The report as a page that needs nothing else: curves as SVG, light or dark as the system is, readable on a phone."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from importlib.resources import files
from typing import Any

from intaglio.evaluation.load.curves import Chart, Line, chart_svg, short
from intaglio.evaluation.load.latency import PERCENTILES
from intaglio.pages import whole_page

__all__ = ["page"]

Run = Mapping[str, Any]

_ACROSS = {"concurrency": "conversations at once", "rate": "conversations a second"}
_HEADS = {"concurrency": "Closed loop", "rate": "Open loop"}
_MILLISECONDS = {"ttft_s": "time to the first token", "tpot_s": "time per token", "latency_s": "whole answer"}
_SPREADS = {
    **_MILLISECONDS,
    "first_turn_ttft_s": "to the first token, first turns",
    "later_turn_ttft_s": "to the first token, later turns",
    "itl_s": "between pieces",
    "queue_s": "queue of the server",
    "lateness_s": "sent too late",
}
_COLOURS = 6


def page(found: Mapping[str, Any]) -> str:
    """The page of a report; see `report.document`."""
    runs = found["runs"]
    names = list(dict.fromkeys(run["name"] for run in runs))
    parts = [
        f"<h1>Load on {escape(' and '.join(names))}</h1>",
        f'<p class="small">{escape(_about(found))}</p>',
        *_warnings(runs),
        *(part for kind in _ACROSS for part in _section(kind, [run for run in runs if kind in run], names)),
        *_percentiles(runs),
        *_failures(runs),
        _meanings(runs),
    ]
    style = (files("intaglio.evaluation.load") / "page.css").read_text("utf-8")
    return whole_page(f"Load on {' and '.join(names)}", "\n".join(parts), style)


def _about(found: Mapping[str, Any]) -> str:
    settings = found["settings"]
    models = " and ".join(dict.fromkeys(str(run["model"]) for run in found["runs"]))
    asked = f"{settings['input_tokens']} tokens in" if "input_tokens" in settings else f"{settings['prompts']} prompts"
    more = [f"{settings['shared_prefix']} of them shared"] if settings.get("shared_prefix") else []
    more += [f"{settings['turns']} turns"] if settings.get("turns", "1") != "1" else []
    parts = [models, asked, *more, f"{settings['output_tokens']} out", f"seed {settings['seed']}", found["time"]]
    return " · ".join(parts)


def _warnings(runs: Sequence[Run]) -> Iterator[str]:
    said = dict.fromkeys(f"{_load(run)} on {run['name']}: {text}" for run in runs for text in run["warnings"])
    if said:
        items = "".join(f"<li>{escape(text)}</li>" for text in said)
        summary = f"<summary>What these figures do not say ({len(said)})</summary>"
        yield f'<details class="warn">{summary}<ul>{items}</ul></details>'


def _section(kind: str, runs: Sequence[Run], names: Sequence[str]) -> Iterator[str]:
    if not runs:
        return
    yield f"<h2>{_HEADS[kind]}: {_ACROSS[kind]}</h2>"
    yield _legend({name: place for place, name in enumerate(names)}, dashed="slowest hundredth (p99)")
    yield _figures(_by_load(kind, sorted(runs, key=lambda run: run[kind]), names))
    yield _table(runs)
    yield from _distributions(kind, runs, names)


def _legend(colours: Mapping[str, int], dashed: str = "") -> str:
    items = [f'<span><i class="s{place % _COLOURS}"></i>{escape(name)}</span>' for name, place in colours.items()]
    items += [f'<span><i class="dash"></i>{dashed}</span>'] if dashed else []
    return f'<div class="legend">{"".join(items)}</div>'


def _figures(charts: Iterable[Chart]) -> str:
    drawn = ((chart, chart_svg(chart)) for chart in charts)
    figures = (f"<figure><h3>{escape(chart.title)}</h3>{svg}</figure>" for chart, svg in drawn if svg)
    return f'<div class="charts">{"".join(figures)}</div>'


def _by_load(kind: str, runs: Sequence[Run], names: Sequence[str]) -> Iterator[Chart]:
    def lines(figure: Callable[[Run], float | None], said: str, faint: bool = False) -> list[Line]:
        found = []
        for place, name in enumerate(names):
            points = [(run[kind], figure(run)) for run in runs if run["name"] == name]
            known = [(x, y) for x, y in points if y is not None]
            found.append(Line(known, place % _COLOURS, faint, f"{name}, {said}"))
        return found

    yield Chart("Tokens of answers a second", _ACROSS[kind], lines(_speed, "tokens/s"))
    for key, title in _MILLISECONDS.items():
        slow = lines(partial(_time, key, "p99"), "p99, ms", faint=True)
        middle = lines(partial(_time, key, "p50"), "median, ms")
        yield Chart(f"{title.capitalize()}, ms", _ACROSS[kind], [*slow, *middle])
    if any(run["goodput"] for run in runs):
        yield Chart("Requests that kept the targets, %", _ACROSS[kind], lines(_kept, "% kept"), top=100)


def _speed(run: Run) -> float | None:
    return run["output_tokens_per_second"]


def _time(key: str, which: str, run: Run) -> float | None:
    return _ms(run[key], which)


def _kept(run: Run) -> float | None:
    return 100 * run["goodput"]["attainment"] if run["goodput"] else None


def _ms(spread: Mapping[str, Any], which: str) -> float | None:
    return None if spread[which] is None else 1000 * float(spread[which])


def _distributions(kind: str, runs: Sequence[Run], names: Sequence[str]) -> Iterator[str]:
    """Of one server a curve for each level, of several their curves at the highest level that all have."""
    if len(names) == 1:
        chosen, title = {_load(run): run for run in runs[-_COLOURS:]}, "Distribution at each level"
    else:
        shared = [
            x for x in {run[kind] for run in runs} if len({r["name"] for r in runs if r[kind] == x}) == len(names)
        ]
        if not shared:
            return
        most = max(shared)
        chosen = {run["name"]: run for run in runs if run[kind] == most}
        title = f"Distribution at {_load(next(iter(chosen.values())))}"
    yield f"<h2>{escape(title)}</h2>"
    yield _legend({name: place for place, name in enumerate(chosen)})
    yield _figures(
        Chart(f"{words.capitalize()}: % within", "ms", _cumulative(chosen, key), marks=False, top=100)
        for key, words in _MILLISECONDS.items()
    )


def _cumulative(chosen: Mapping[str, Run], key: str) -> list[Line]:
    shares = {"min": 0, **{f"p{p}": p for p in PERCENTILES}, "max": 100}
    lines = []
    for place, (name, run) in enumerate(chosen.items()):
        known = [(_ms(run[key], which), float(share)) for which, share in shares.items()]
        lines.append(Line([(x, y) for x, y in known if x is not None], place % _COLOURS, named=name))
    return lines


def _load(run: Run) -> str:
    highest = " (highest)" if run.get("highest") else ""
    if "concurrency" in run:
        return f"{run['concurrency']:g} at once{highest}"
    return f"{short(run['rate'])}/s {run['arrivals']}{highest}"


def _table(runs: Sequence[Run]) -> str:
    goods = any(run["goodput"] for run in runs)
    head = ["load", "server", "tokens/s", "requests/s", "tokens in", "made/wanted", "failed"]
    head += [f"{name}, ms<br>p50 / p99" for name in ("TTFT", "TPOT", "latency")] + (["kept"] if goods else [])
    return _as_table(head, (_cells(run, goods) for run in runs), (0, 1))


def _cells(run: Run, goods: bool) -> Iterator[str]:
    yield from (escape(_load(run)), escape(run["name"]))
    yield from (short(run["output_tokens_per_second"]), short(run["requests_per_second"]))
    yield short(run["input_tokens_each"]["mean"])
    yield f"{run['output_tokens']}/{run['wanted_output_tokens']}"
    yield f"{run['failed']}/{run['requests']}"
    for key in _MILLISECONDS:
        yield f"{short(_ms(run[key], 'p50'))} / {short(_ms(run[key], 'p99'))}"
    if goods:
        yield f"{100 * run['goodput']['attainment']:.0f} %" if run["goodput"] else "–"


def _percentiles(runs: Sequence[Run]) -> Iterator[str]:
    columns = ["mean", "min", *(f"p{p}" for p in PERCENTILES), "max"]
    yield "<h2>Every percentile, ms</h2>"
    for run in runs:
        known = {words: run[key] for key, words in _SPREADS.items() if key in run and run[key]["count"]}
        rows = [[words, str(one["count"]), *(short(_ms(one, c)) for c in columns)] for words, one in known.items()]
        table = _as_table(["", "count", *columns], rows)
        yield f"<details><summary>{escape(_load(run))} on {escape(run['name'])}</summary>{table}</details>"


def _failures(runs: Sequence[Run]) -> Iterator[str]:
    rows = [
        [f"{_load(run)} on {run['name']}", kind, str(count), run["error_details"].get(kind, "")]
        for run in runs
        for kind, count in run["errors"].items()
    ]
    if rows:
        yield "<h2>What failed</h2>"
        yield _as_table(
            ["where", "kind", "how often", "what the server said"], [map(escape, row) for row in rows], (0, 1, 3)
        )


def _as_table(head: Sequence[str], rows: Iterable[Iterable[str]], texts: Sequence[int] = (0,)) -> str:
    """A table that scrolls by itself where the page is narrow; cells are HTML, those of columns `texts` words."""
    kinds = [' class="text"' if column in texts else "" for column in range(len(head))]
    names = "".join(f"<th{kind}>{name}</th>" for kind, name in zip(kinds, head, strict=True))
    lines = (zip(kinds, row, strict=True) for row in rows)
    body = "".join(f"<tr>{''.join(f'<td{kind}>{cell}</td>' for kind, cell in line)}</tr>" for line in lines)
    return f'<div class="wide"><table><tr>{names}</tr>{body}</table></div>'


def _meanings(runs: Sequence[Run]) -> str:
    """The definitions, so that the page can be read alone."""
    said = [
        "TTFT: from the sending to the first piece with content. TPOT: the rest of the time over the tokens behind the "
        "first; answers of one token have none. Latency: to the last piece of the answer.",
        "In an open loop, times begin when a request was due. Percentiles are interpolated. Failed requests are in no "
        "time and no throughput.",
    ]
    said += ["Kept: requests that met every target, of all that were sent."] if any(r["goodput"] for r in runs) else []
    return f'<p class="small" style="margin-top:2.5rem">{escape(" ".join(said))}</p>'
