"""`intaglio load`: how fast a server answers many at once; any server that speaks OpenAI's protocol."""

import asyncio
import json as json_module
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from intaglio.cli import options
from intaglio.errors import UserError
from intaglio.files import read_text

if TYPE_CHECKING:
    import httpx2

    from intaglio.evaluation.load import Prompt, Target

_TIMES = ("ttft_s", "tpot_s", "itl_s", "latency_s")


@dataclass(frozen=True)
class _Plan:
    """What each server is asked."""

    concurrency: list[int]
    rates: list[float]
    requests: int | None
    input_tokens: int
    output_tokens: int
    shared_prefix: int
    prompts: "list[Prompt] | None"
    seed: int
    warmup: int

    def levels(self) -> list[tuple[str, float]]:
        """Closed loops, then open ones."""
        return [*(("concurrency", n) for n in self.concurrency), *(("rate", r) for r in self.rates)]

    def count(self, kind: str, level: float) -> int:
        """Requests at one level: four rounds, or half a minute, where nothing is said."""
        return self.requests or max(8, round(4 * level if kind == "concurrency" else 30 * level))


def load(
    url: Annotated[list[str], typer.Argument(help="Servers; several are measured one after the other.")],
    concurrency: Annotated[
        str, typer.Option(help="Requests that run at once; default, where no rate is given: 1,8,16.")
    ] = "",
    rate: Annotated[str, typer.Option(help="Requests a second, sent whatever still runs: 0.5,2.")] = "",
    requests: Annotated[
        int | None, typer.Option(min=1, help="At each level; default: 4 times the concurrency, or 30 s at a rate.")
    ] = None,
    input_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 128,
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 128,
    shared_prefix: Annotated[int, typer.Option(min=0, help="Of the prompt, tokens that all have in common.")] = 0,
    prompts: Annotated[Path | None, typer.Option(help=".jsonl with `prompt` or `messages`, in place of words.")] = None,
    endpoint: Annotated[Literal["chat", "completions"], typer.Option(help="Which kind of request.")] = "chat",
    model: Annotated[str | None, typer.Option(help="The model's name; default: the first that is served.")] = None,
    api_key: Annotated[str | None, typer.Option(help=f"The server's key. Or in {options.API_KEY}.")] = None,
    ignore_eos: Annotated[bool, typer.Option(help="Ask for answers of full length; OpenAI itself cannot.")] = True,
    warmup: Annotated[int, typer.Option(min=0, help="Requests before the first level, not counted.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the words and of the moments.")] = 0,
    json: options.Json = False,
) -> None:
    """Measure throughput, time to the first token, and time per token, at rising load."""
    from intaglio.evaluation.load import Target

    levels = _numbers(concurrency or ("" if rate else "1,8,16"), int, "--concurrency")
    rates = _numbers(rate, float, "--rate")
    if shared_prefix > input_tokens:
        raise UserError(f"the prompts have {input_tokens} tokens only", where="--shared-prefix")
    given = _read_prompts(prompts)
    plan = _Plan(levels, rates, requests, input_tokens, output_tokens, shared_prefix, given, seed, warmup)
    fields = {"ignore_eos": True} if ignore_eos else {}
    key = api_key or os.environ.get(options.API_KEY)
    found = []
    for address in url:
        target = Target(address, model, endpoint, key, fields)
        found += asyncio.run(_measure(target, plan))
    if json:
        print(json_module.dumps(found))
    else:
        _show(found)
    if any(run["failed"] for run in found):
        raise typer.Exit(1)


def _numbers(text: str, kind: Callable[[str], Any], where: str) -> list[Any]:
    try:
        values = [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        values = [-1]
    if any(not value > 0 for value in values):
        raise UserError(f"{text!r} is no list of numbers above 0", where=where, mend="such as 1,8,16")
    return values


def _read_prompts(file: Path | None) -> "list[Prompt] | None":
    """One prompt a line."""
    if file is None:
        return None
    found = []
    for number, line in enumerate(filter(str.strip, read_text(file).splitlines()), 1):
        try:
            row = json_module.loads(line)
            found.append(row.get("messages") or row["prompt"])
        except (ValueError, KeyError, AttributeError) as error:
            raise UserError("no JSON object with `prompt` or `messages`", where=f"{file}:{number}") from error
    if not found:
        raise UserError("there are no prompts", where=str(file))
    return found


async def _measure(target: "Target", plan: _Plan) -> list[dict[str, Any]]:
    from intaglio.evaluation.latency import summary
    from intaglio.evaluation.load import closed_loop, name_model, open_loop, send

    found = []
    async with target.client() as client:
        await name_model(client, target)

        async def sender(prompt: "Prompt", due: float | None) -> Any:
            return await send(client, target, prompt, plan.output_tokens, due)

        await closed_loop(sender, await _prompts(client, target, plan, plan.warmup, "warm-up"), 1)
        for kind, level in plan.levels():
            prompts = await _prompts(client, target, plan, plan.count(kind, level), f"{kind} {level}")
            if kind == "rate":
                samples = await open_loop(sender, prompts, level, plan.seed)
            else:
                samples = await closed_loop(sender, prompts, int(level))
            found.append({"url": target.url, "model": target.model, kind: level, **summary(samples)})
            print(f"{target.url}: {kind} {level:g} measured", file=sys.stderr)
    return found


async def _prompts(
    client: "httpx2.AsyncClient", target: "Target", plan: _Plan, count: int, level: str
) -> "Sequence[Prompt]":
    """Each level has prompts of its own, so that no cache knows them; all levels share the prefix."""
    from intaglio.evaluation.load import random_prompts

    if plan.prompts is not None:
        return [plan.prompts[i % len(plan.prompts)] for i in range(count)]
    return await random_prompts(
        client, target, count, plan.input_tokens, shared=plan.shared_prefix, seed=plan.seed, fresh=level
    )


def _show(found: Sequence[dict[str, Any]]) -> None:
    """One table a server."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for url in dict.fromkeys(run["url"] for run in found):
        table = Table("load", "tokens/s", "made/wanted", "failed", "TTFT", "TPOT", "ITL", "latency", title=url)
        for run in (run for run in found if run["url"] == url):
            table.add_row(*_row(run))
        console.print(table)
    console.print("Times in ms: the median/the slowest hundredth. Tokens of answers.")


def _row(run: dict[str, Any]) -> list[str]:
    load = f"{run['concurrency']} at once" if "concurrency" in run else f"{run['rate']:g}/s"
    speed = f"{run['output_tokens_per_second'] or 0:.1f}"
    tokens = f"{run['output_tokens']}/{run['wanted_output_tokens']}"
    times = [_milliseconds(run[name]["p50"], run[name]["p99"]) for name in _TIMES]
    return [load, speed, tokens, f"{run['failed']}/{run['requests']}", *times]


def _milliseconds(middle: float | None, slow: float | None) -> str:
    return "-" if middle is None or slow is None else f"{1000 * middle:.0f}/{1000 * slow:.0f}"
