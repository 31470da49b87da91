"""`intaglio advise`: which road suits a task, by what is said of it, or measured on its own rows."""

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
import yaml

from intaglio.advice.needs import Needs
from intaglio.cli import options
from intaglio.errors import UserError
from intaglio.lineage.units import short_bytes
from intaglio.specs import load_yaml, validate

if TYPE_CHECKING:
    from rich.table import Table

    from intaglio.advice.outcome import Outcome, Verdict
    from intaglio.advice.recommend import Advice

__all__ = ["advise"]

_ASKED = ("model", "knowledge", "style", "skill", "examples", "documents", "requests", "latency", "budget", "memory")
_WIDTH = 120  # of the table, which says nothing where it is squeezed
_WORDS = ("knowledge", "style", "skill")


def _help(name: str) -> str:
    """A field's question, as an option's help."""
    field = Needs.model_fields[name]
    words = f" ({', '.join(get_args(field.annotation))})" if name in _WORDS else ""
    return f"{(field.description or name).capitalize()}?{words}"


def advise(
    file: Annotated[Path | None, typer.Argument(help="A YAML file of what follows; with --measure, of a task.")] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Walk the roads on the rows of a task file, and say which wins.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="With --measure: keeps what is done, for the next call. Default: advice-FILE.")
    ] = None,
    threads: options.Threads = None,
    model: Annotated[str | None, typer.Option(help=_help("model"))] = None,
    knowledge: Annotated[str | None, typer.Option(help=_help("knowledge"))] = None,
    style: Annotated[str | None, typer.Option(help=_help("style"))] = None,
    skill: Annotated[str | None, typer.Option(help=_help("skill"))] = None,
    examples: Annotated[int | None, typer.Option(help=_help("examples"))] = None,
    documents: Annotated[int | None, typer.Option(help=_help("documents"))] = None,
    question_tokens: Annotated[int | None, typer.Option(help=_help("question_tokens"))] = None,
    answer_tokens: Annotated[int | None, typer.Option(help=_help("answer_tokens"))] = None,
    requests: Annotated[int | None, typer.Option(help=_help("requests"))] = None,
    latency: Annotated[float | None, typer.Option(help=_help("latency"))] = None,
    budget: Annotated[float | None, typer.Option(help=_help("budget"))] = None,
    memory: Annotated[float | None, typer.Option(help=_help("memory"))] = None,
    tflops: Annotated[float | None, typer.Option(help=_help("tflops"))] = None,
    bandwidth: Annotated[float | None, typer.Option(help=_help("bandwidth"))] = None,
    json: options.Json = False,
) -> None:
    """Which road suits a task: prompt, few-shot, RAG, LoRA, QLoRA, full fine-tuning, or LoRA+RAG.

    Asks on the terminal where nothing is said.
    """
    given = {name: value for name, value in locals().items() if name in Needs.model_fields and value is not None}
    if measure:
        _measure(file, out, threads, given, json)
        return
    if out is not None or threads is not None:
        raise UserError("means nothing where nothing is measured", where="--out" if out else "--threads")
    from intaglio.advice.recommend import advise as advice

    found = advice(_needs(file, given))
    if json:
        print(json_module.dumps([one.plain() for one in found], ensure_ascii=False))
    else:
        _show_advice(found)


def _needs(file: Path | None, given: dict[str, Any]) -> Needs:
    """What the file says, and over it the options; what is asked, where neither says anything."""
    if file is None and not given:
        return _asked()
    said = load_yaml(file) if file else {}
    if not isinstance(said, dict):
        raise UserError("not a mapping of keys to values", where=str(file))
    needs: Needs = validate(Needs, {**said, **given}, str(file or "command line"))
    return needs


def _asked() -> Needs:
    """The answers of whoever sits at the terminal.

    Raises:
        UserError: nobody does.
    """
    if not sys.stdin.isatty():
        raise UserError(
            "nothing is said of the task", mend="name a YAML file, or options: see `intaglio advise --help`"
        )
    answers: dict[str, Any] = {}
    for name in _ASKED:
        _ask(name, answers)
    return Needs(**answers)


def _ask(name: str, answers: dict[str, Any]) -> None:
    """Asks until the answer fits; nothing takes the default."""
    default = Needs.model_fields[name].default
    while text := input(f"{_help(name)} [{'any' if default is None else default}] ").strip():
        try:
            answers[name] = getattr(validate(Needs, {name: yaml.safe_load(text)}, name), name)
        except (UserError, yaml.YAMLError) as error:
            print(error)
        else:
            return


def _show_advice(found: "list[Advice]") -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(_advice_table(found))
    for place, one in enumerate(found, 1):
        told = [*one.reasons, *(f"impossible: {obstacle}" for obstacle in one.obstacles)]
        console.print(f"{place}. [bold]{one.road.name}[/]: {'; '.join(told)}", soft_wrap=True)
    console.print(f"\nnext, for {found[0].road.name}:")
    for command in found[0].commands:
        console.print(f"    {command}", markup=False, soft_wrap=True)


def _advice_table(found: "list[Advice]") -> "Table":
    from rich.table import Table

    table = Table("", "road", "fits", "memory to train", "to serve", "setup", "a request")
    for place, one in enumerate(found, 1):
        costs = one.costs
        training = short_bytes(costs.training_bytes) if costs.training_bytes else "-"
        memory = (training, short_bytes(costs.serving_bytes))
        times = (_duration(costs.setup_seconds), _duration(costs.seconds))
        table.add_row(str(place), one.road.name, f"{one.fit:.0%}", *memory, *times)
    return table


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.2g} s" if seconds else "-"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"


def _measure(file: Path | None, out: Path | None, threads: int | None, given: dict[str, Any], json: bool) -> None:
    if file is None or given:
        where = f"--{next(iter(given))}".replace("_", "-") if given else "--measure"
        raise UserError("a task file says what is measured", where=where, mend="give TASK.yaml and nothing else")
    import torch

    from intaglio.advice.measure import measure
    from intaglio.advice.outcome import judge
    from intaglio.advice.report import curves
    from intaglio.advice.task import load_task, read_sides
    from intaglio.advice.workshop import LocalWorkshop
    from intaglio.plots import draw_curves

    if threads:
        torch.set_num_threads(threads)
    task, folder = load_task(file), out or Path(f"advice-{file.stem}")
    outcomes = measure(LocalWorkshop(task, read_sides(task), folder, _say), folder, _say)
    verdict = judge(outcomes, task.requests, task.good_enough)
    if json:
        print(json_module.dumps({**verdict.plain(), "roads": [one.plain() for one in outcomes]}, ensure_ascii=False))
        return
    draw_curves(folder / "roads.png", curves(outcomes, task.requests), "requests")
    _show_roads(outcomes, verdict, task.requests)
    print(folder / "roads.png")


def _show_roads(outcomes: "list[Outcome]", verdict: "Verdict", requests: int) -> None:
    from rich.console import Console
    from rich.table import Table

    from intaglio.advice.report import COLUMNS, reference_of, rows, sentence

    table = Table(*COLUMNS)
    for row in rows(outcomes):
        table.add_row(*row)
    console = Console(highlight=False, width=_WIDTH)
    console.print(table)
    reference = reference_of(outcomes)
    if reference is not None:
        console.print(f"break-even: requests after which training is repaid, against {reference.name}", soft_wrap=True)
    console.print(sentence(verdict, requests), markup=False, soft_wrap=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
