"""`intaglio plan`: the memory of a job, by arithmetic, before anything is rented or loaded."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from intaglio.cli import options
from intaglio.errors import UserError

__all__ = ["plan"]

Jobs = Literal["pretrain", "sft", "reward", "dpo", "orpo", "kto", "ppo", "grpo", "serve"]
Schedules = Literal[
    "gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble", "zbv_zero_bubble", "dual_pipe_v"
]


def plan(
    model: Annotated[str, typer.Argument(help="A preset, a directory, a pulled name, or a recipe (FILE.yaml).")],
    job: Annotated[Jobs | None, typer.Option(help="What is done with it; default: sft.")] = None,
    adapter: Annotated[
        Literal["none", "lora", "qlora"] | None, typer.Option(help="What trains: all weights, or an adapter beside.")
    ] = None,
    rank: Annotated[int | None, typer.Option(min=1, help="Of the adapter; default: 16.")] = None,
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"] | None, typer.Option(help="What is computed in.")
    ] = None,
    optimizer: Annotated[Literal["adamw", "paged_adamw", "muon"] | None, typer.Option()] = None,
    sequence: Annotated[int | None, typer.Option(help="Tokens of a sequence; serving: of prompt and answer.")] = None,
    micro_batch: Annotated[int | None, typer.Option(help="Sequences that a rank runs together.")] = None,
    accumulation: Annotated[int | None, typer.Option(help="Micro-batches of a step.")] = None,
    checkpointing: Annotated[
        str | None, typer.Option(help="0 keeps all activations, N of every Nth layer the input; or selective.")
    ] = None,
    chunk: Annotated[int | None, typer.Option(help="Tokens whose logits exist at once; 0: all.")] = None,
    device: Annotated[str, typer.Option(help="Its name in the table (`h100`, ...), or `here`.")] = "h100",
    device_file: Annotated[Path | None, typer.Option(help="A table of your own, of the shape of ours.")] = None,
    price: Annotated[float | None, typer.Option(help="Dollars that a device costs an hour.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="Devices of all; what tp, pp and cp leave is dp.")] = None,
    zero: Annotated[
        int | None, typer.Option(min=0, max=3, help="Default: 3, with a pipeline 1, on one device 0.")
    ] = None,
    hsdp: Annotated[int | None, typer.Option(min=1, help="Replicas of a group of shards.")] = None,
    tp: Annotated[int | None, typer.Option(min=1, help="Devices that share every matrix.")] = None,
    pp: Annotated[int | None, typer.Option(min=1, help="Devices that layers are dealt out to.")] = None,
    schedule: Annotated[Schedules | None, typer.Option(help="Of the pipeline; default: 1f1b.")] = None,
    cp: Annotated[int | None, typer.Option(min=1, help="Devices that share every sequence.")] = None,
    ep: Annotated[int | None, typer.Option(min=1, help="Devices of dp that experts are spread over.")] = None,
    offload: Annotated[bool, typer.Option("--offload", help="Shards wait in the host's memory.")] = False,
    concurrency: Annotated[
        int | None, typer.Option(help="Serving: sequences at once; default: as many as fit.")
    ] = None,
    fit: Annotated[
        bool, typer.Option("--fit", help="Search the fastest layout of --gpus devices; what is given is kept.")
    ] = False,
    sequences: Annotated[int | None, typer.Option(min=1, help="--fit: of a step, on all devices.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="--fit: write the recipe's lines.")] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Take the step on PyTorch's engine, without memory, and print both numbers.")
    ] = False,
    timeline: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the pipeline's as an SVG.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the stacked bar as a PNG.")] = None,
    as_json: options.Json = False,
) -> None:
    """What a job needs of memory on each device, when in a step, whether it fits, and what to change if it does not."""
    from intaglio.cli import plan_report, plan_request

    given = {
        "dtype": dtype,
        "optimizer": optimizer,
        "sequence": sequence,
        "micro_batch": micro_batch,
        "accumulation": accumulation,
        "checkpointing": _number_or_word(checkpointing),
    }
    layout = {"zero": zero, "hsdp": hsdp, "tp": tp, "cp": cp, "ep": ep, "offload": offload or None}
    pipeline = {"ranks": pp, "schedule": schedule}
    request = plan_request.Request(
        model, job, adapter, rank, _known(given), chunk, _known(layout), _known(pipeline), gpus, device, device_file,
        price, concurrency,
    )  # fmt: skip
    of_training: dict[str, object] = {"--timeline": timeline, "--trace": trace or None}
    _require_use(request.concurrency, job, fit, {"--sequences": sequences, "--out": out}, of_training)
    if fit and (plot is not None or trace):
        what, where = ("draws", "--plot") if plot is not None else ("traces", "--trace")
        raise UserError(f"{what} one layout's memory", where=where, mend="plan the layout that --fit finds")
    if fit:
        _fit(request, sequences, out, timeline, as_json)
        return
    found: Any = plan_request.serving(request) if job == "serve" else plan_request.training(request)
    if plot is not None:
        plan_report.draw(found, plot)
    if timeline is not None:
        from intaglio.cli.plan_fit import draw_pipeline

        draw_pipeline(found.report, timeline)
    beside = _traced(found) if trace else None
    if as_json:
        more = {} if beside is None else {"trace": beside.plain()}
        typer.echo(json.dumps({**plan_report.plain(found), **more}, indent=2, ensure_ascii=False))
        return
    plan_report.show(found)
    if beside is not None:
        from intaglio.cli.plan_trace import show_trace

        show_trace(beside)


def _traced(found: Any) -> Any:
    from intaglio.cli.plan_trace import traced

    return traced(found.report.plan)


def _fit(request: Any, sequences: int | None, out: Path | None, timeline: Path | None, as_json: bool) -> None:
    from intaglio.cli.plan_fit import draw_run, fit_layout, show_fit

    found, device = fit_layout(request, sequences)
    data = show_fit(found, device, as_json, out)
    if data is not None:
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
    if timeline is not None:
        draw_run(found.winner.time, found.winner.layout, timeline)


def _require_use(
    concurrency: int | None, job: str | None, fit: bool, of_fit: dict[str, object], of_training: dict[str, object]
) -> None:
    """Refuses options that would do nothing.

    Raises:
        UserError: names the first.
    """
    unfit = [name for name, value in of_fit.items() if value is not None and not fit]
    if unfit:
        raise UserError("means nothing without a search", where=unfit[0], mend="say --fit, or leave it out")
    serves = job == "serve"
    unfit = [name for name, value in {**of_training, "--fit": fit or None}.items() if value is not None and serves]
    if unfit:
        raise UserError("means nothing to serving", where=unfit[0], mend="leave it out")
    if concurrency is not None and not serves:
        raise UserError("of serving", where="--concurrency", mend="say --job serve, or leave it out")


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _number_or_word(text: str | None) -> int | str | None:
    if text is None or not text.lstrip("-").isdigit():
        if text not in (None, "selective"):
            raise UserError(f"{text!r} is no way to checkpoint", where="--checkpointing", mend="a number, or selective")
        return text
    return int(text)
