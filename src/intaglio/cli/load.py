"""`intaglio load`: how fast a server answers many at once; any server that speaks OpenAI's protocol."""

import asyncio
import json as json_module
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from intaglio.cli import options

if TYPE_CHECKING:
    from intaglio.evaluation.load.run import Measured, Plan
    from intaglio.evaluation.load.target import Target


def load(
    url: Annotated[list[str], typer.Argument(help="Servers, [NAME=]URL; of several, each level is measured in turn.")],
    concurrency: Annotated[
        str, typer.Option(help="Closed loop: conversations that run at once; default, without a rate: 1,8,16.")
    ] = "",
    rate: Annotated[str, typer.Option(help="Open loop: conversations a second, whatever still runs: 0.5,2.")] = "",
    arrivals: Annotated[str, typer.Option(help="Of rates: poisson, constant, bursty:0.25, ramp:FIRST.")] = "poisson",
    requests: Annotated[
        int | None, typer.Option(min=1, help="At each level; default: 4 times the concurrency, or 30 s at a rate.")
    ] = None,
    duration: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds a level; what runs then goes on to its end.")
    ] = None,
    input_tokens: Annotated[
        str, typer.Option(help="Of a prompt, or a turn: 128, 64-256, normal:128:32, @FILE with a number a line.")
    ] = "128",
    output_tokens: Annotated[str, typer.Option(help="Of an answer, said likewise.")] = "128",
    shared_prefix: Annotated[int, typer.Option(min=0, help="Of the prompt, tokens that all have in common.")] = 0,
    prefixes: Annotated[int, typer.Option(min=1, help="How many such beginnings there are.")] = 1,
    prompts: Annotated[
        Path | None, typer.Option(help="Rows of data, or .txt with one a line, in place of words.")
    ] = None,
    multi_turn: Annotated[bool, typer.Option(help="Conversations: each turn with the answers before it.")] = False,
    turns: Annotated[str, typer.Option(help="Of conversations of words: how many, said like a length.")] = "3",
    endpoint: Annotated[Literal["chat", "completions"], typer.Option(help="Which kind of request.")] = "chat",
    model: Annotated[str | None, typer.Option(help="The model's name; default: the first that is served.")] = None,
    api_key: Annotated[str | None, typer.Option(help=f"The server's key. Or in {options.API_KEY}.")] = None,
    ignore_eos: Annotated[bool, typer.Option(help="Ask for answers of full length; OpenAI itself cannot.")] = True,
    fields: Annotated[str, typer.Option("--body", help="More fields of each request, as a JSON object.")] = "{}",
    tokenizer: Annotated[
        str | None, typer.Option(help="A model's name or directory, where the server does not tokenise or count.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds after which a request has failed.")] = 600,
    retry_429: Annotated[int, typer.Option("--retry-429", min=0, help="Tries after a 429, as Retry-After says.")] = 0,
    slo: Annotated[str, typer.Option(help="Targets of each answer: ttft=500ms,tpot=50ms,latency=10s.")] = "",
    attainment: Annotated[float, typer.Option(min=0.01, max=1, help="Share of requests that must keep them.")] = 0.99,
    find: Annotated[
        Literal["concurrency", "rate"] | None, typer.Option(help="Look for the most load that keeps the targets.")
    ] = None,
    between: Annotated[str, typer.Option(help="Where to look.")] = "1,256",
    warmup: Annotated[int, typer.Option(min=0, help="Requests before the first level, not counted.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the words, the lengths and the moments.")] = 0,
    with_: Annotated[
        Literal["intaglio", "evalscope"], typer.Option("--with", help="Who sends: we, or EvalScope's perf.")
    ] = "intaglio",
    python: Annotated[Path | None, typer.Option(help="The Python that has EvalScope; default: .venv-eval's.")] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for load.json, CSV tables and the page load.html.")] = None,
    json: options.Json = False,
) -> None:
    """Measure throughput, time to the first token, and time per token, at rising load."""
    from intaglio.cli import load_request

    asked = load_request.Asked(**{k: v for k, v in locals().items() if k in load_request.Asked.__annotations__})
    targets, plan = asked.targets(), asked.plan()
    if with_ == "evalscope":
        folder = tempfile.TemporaryDirectory() if out is None else nullcontext(str(out / "evalscope"))
        measured = _by_evalscope(targets, plan, folder, python)
    else:
        measured = _by_us(targets, plan, json)
    _report(measured, targets, plan, out, json)
    if find is None and any(one.summary["failed"] for one in measured):
        raise typer.Exit(1)


def _by_us(targets: "Sequence[Target]", plan: "Plan", quiet: bool) -> "list[Measured]":
    """What was measured, up to where somebody interrupted it."""
    from intaglio.cli.load_live import observing
    from intaglio.evaluation.load.run import compare

    with observing(quiet) as observer:
        try:
            return asyncio.run(compare(targets, plan, observer))
        except KeyboardInterrupt:
            if not observer.measured:
                raise
            observer.says("interrupted; these levels were measured")
            return observer.measured


def _by_evalscope(
    targets: "Sequence[Target]", plan: "Plan", folder: AbstractContextManager[str], python: Path | None
) -> "list[Measured]":
    from intaglio.cli.load_live import observing
    from intaglio.evaluation.bridges.outside import OutsideError
    from intaglio.evaluation.load.evalscope import drive

    with folder as path, observing(quiet=True) as observer:
        places = [Path(path) / str(number) if len(targets) > 1 else Path(path) for number in range(len(targets))]
        pairs = zip(targets, places, strict=True)
        try:
            return [one for target, place in pairs for one in drive(target, plan, place, python, observer)]
        except OutsideError as error:
            observer.says(f"intaglio: {error}")
            raise typer.Exit(1) from error


def _report(
    measured: "Sequence[Measured]", targets: "Sequence[Target]", plan: "Plan", out: Path | None, json: bool
) -> None:
    from intaglio.cli.load_table import show
    from intaglio.evaluation.load.page import page
    from intaglio.evaluation.load.report import document, write_folder

    found: dict[str, Any] = document(measured, targets, plan)
    if out is not None:
        write_folder(out, found, measured, page(found))
    if json:
        print(json_module.dumps(found))
    else:
        show(found["runs"], str(out / "load.html") if out else None)
