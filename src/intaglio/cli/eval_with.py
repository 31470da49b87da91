"""`intaglio eval --with`: lm-eval or EvalScope on our engine, which is served for as long as they ask, or on a URL."""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from intaglio.cli.eval_host import Host, check_tokens, host
from intaglio.errors import UserError

if TYPE_CHECKING:
    from intaglio.cli.eval_request import Asked
    from intaglio.evaluation.bridges.sheet import Sheet
    from intaglio.evaluation.results import Results, TaskResult
    from intaglio.evaluation.runs import Settings

__all__ = ["Framework", "measured_with"]

Framework = Literal["lm-eval", "evalscope"]


def measured_with(
    framework: Framework, asked: "Asked", out: Path | None = None, python: Path | None = None
) -> "tuple[Results, Path]":
    """What a framework finds, in our form, and the folder it is written to; its own files and log stay there too.

    Args:
        framework: which one.
        asked: the options of `intaglio eval`.
        out: the folder; None for one in `runs`.
        python: see `find_program`.

    Raises:
        UserError: it is not installed, an option has no effect on it, or it cannot put one of the tasks.
        Exit: it failed, or nobody answers any more; the same command goes on with what it kept.
    """
    from intaglio.evaluation.bridges.lm_eval_inside import is_inside
    from intaglio.evaluation.bridges.lm_eval_own import PREFIX, own_names
    from intaglio.evaluation.bridges.outside import OutsideError, find_program
    from intaglio.evaluation.subjects.subject import SubjectGoneError

    settings = asked.settings()
    asked.check()
    _check(framework, settings)
    own, rest = own_names(asked.tasks)
    if own and framework != "lm-eval":
        raise UserError("is lm-eval's own task", where=f"--tasks {PREFIX}{own[0]}", mend="take --with lm-eval")
    inside = framework == "lm-eval" and not (asked.is_url or own or python) and is_inside()
    if not inside:
        find_program("lm_eval" if framework == "lm-eval" else "evalscope", python)  # nothing slow begins without it
    sheets = _sheets(framework, replace(asked, tasks=rest), settings) if rest or not own else []
    folder = out or Path("runs", _run_name(framework, asked, sheets))
    try:
        return _measured(framework, asked, sheets, folder, _Way(inside, python)), folder
    except (OutsideError, SubjectGoneError) as error:
        print(f"intaglio: {error}; run the same command again to go on", file=sys.stderr)
        raise typer.Exit(1) from error


@dataclass(frozen=True)
class _Way:
    """Whether a framework runs in this process, or else whose Python runs it."""

    inside: bool
    python: Path | None


def _measured(framework: Framework, asked: "Asked", sheets: "Sequence[Sheet]", folder: Path, way: _Way) -> "Results":
    from intaglio.evaluation.results import Results, write_results
    from intaglio.evaluation.subjects.identity import versions

    told = {**asdict(asked.settings()), "with": framework}
    _check_folder(folder, told)
    facts, found, theirs = _found(framework, asked, sheets, folder, way)
    ordered = dict.fromkeys([*(sheet.task.name for sheet in sheets), *found])
    tasks = {name: found[name] for name in ordered}
    results = Results(facts, told, {**versions(), **theirs}, tasks)
    write_results(folder, results)
    return results


def _check_folder(folder: Path, settings: Mapping[str, Any]) -> None:
    """Results of something else are not written over."""
    from intaglio.evaluation.results import RESULTS, read_results

    there = (folder / RESULTS).exists()
    if there and dict(read_results(folder).settings) != json.loads(json.dumps(settings)):
        raise UserError("holds an evaluation with other settings", where=str(folder), mend="give another --out")


def _found(
    framework: Framework, asked: "Asked", sheets: "Sequence[Sheet]", folder: Path, way: _Way
) -> "tuple[Mapping[str, Any], dict[str, TaskResult], dict[str, str]]":
    """What is known of the model, what was found, and by which versions."""
    own = folder.absolute() / framework
    if way.inside:
        from intaglio.evaluation.bridges.lm_eval_inside import run_inside

        subject = asked.subject()
        return subject.identity(), *run_inside(sheets, subject, own)
    run = _lm_eval if framework == "lm-eval" else _evalscope
    with host(asked, folder) as at:
        return at.facts, *run(at, asked, sheets, own, way.python)


def _check(framework: str, settings: "Settings") -> None:
    """An option that it would not follow is refused."""
    scored = framework == "evalscope" and settings.scoring in ("answer", "letter")
    for option, given in {
        "--temperature": settings.temperature,
        "--samples": settings.samples > 1,
        "--metrics": settings.metrics,
        "--scoring": scored,
    }.items():
        if given:
            what = "EvalScope knows no likelihoods" if scored else f"has no effect with --with {framework}"
            raise UserError(what, where=option, mend="leave it out")


def _sheets(framework: str, asked: "Asked", settings: "Settings") -> "list[Sheet]":
    from intaglio.evaluation.bridges.evalscope import evalscope_sheet
    from intaglio.evaluation.bridges.lm_eval import check_sheet
    from intaglio.evaluation.bridges.sheet import sheet_of
    from intaglio.evaluation.runs import units_of
    from intaglio.evaluation.tasks.read import read_tasks

    tasks = read_tasks(asked.tasks, listed=asked.list_choices, say=lambda line: print(line, file=sys.stderr))
    if framework == "lm-eval":
        sheets = [sheet_of(unit, settings) for unit in units_of(tasks, settings)]
        for sheet in sheets:
            check_sheet(sheet)
        return sheets
    plain = replace(settings, scoring="answer")  # it lists choices itself
    return [evalscope_sheet(unit, plain) for unit in units_of(tasks, plain)]


def _run_name(framework: str, asked: "Asked", sheets: "Sequence[Sheet]") -> str:
    """A name for the folder that is another with whatever is asked, or of whom."""
    rows = [(sheet.task.name, [question.prompt for question in sheet.questions]) for sheet in sheets]
    told = json.dumps([asdict(replace(asked, api_key=None)), rows], default=str)
    return f"eval-{framework}-{Path(asked.model).name}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"


Found = tuple[dict[str, "TaskResult"], dict[str, str]]


def _lm_eval(host: Host, asked: "Asked", sheets: "Sequence[Sheet]", folder: Path, python: Path | None) -> Found:
    """Chats and texts are two runs."""
    from intaglio.evaluation.bridges.lm_eval import LmEval, chats, completions
    from intaglio.evaluation.bridges.lm_eval_own import own_names

    found: dict[str, TaskResult] = {}
    theirs: dict[str, str] = {}
    for chat in (False, True):
        chosen = [sheet for sheet in sheets if sheet.chat is chat]
        if not chosen:
            continue
        if chat:
            model, told, size = "local-chat-completions", chats(host.url, host.model, asked.concurrency), 1
        else:
            check_tokens(host)
            told = completions(host.url, host.model, host.tokenizer, bos=host.bos, max_length=host.longest)
            model, size = "local-completions", asked.batch_size
        run = LmEval(folder / ("chats" if chat else "texts"), model, told, size, python, host.key, host.facts)
        one, theirs = run.run(chosen)
        found |= one
    if own := own_names(asked.tasks)[0]:
        one, theirs = _own(host, asked, own, folder / "own", python)
        found |= one
    return found, theirs


def _own(host: Host, asked: "Asked", names: list[str], folder: Path, python: Path | None) -> Found:
    from intaglio.evaluation.bridges.lm_eval import LmEval, completions
    from intaglio.evaluation.bridges.lm_eval_own import run_own

    settings = asked.settings()
    if len(settings.shots) > 1:
        raise UserError("lm-eval's own tasks take one number", where="--shots")
    check_tokens(host)
    told = completions(host.url, host.model, host.tokenizer, bos=host.bos, max_length=host.longest)
    run = LmEval(folder, "local-completions", told, asked.batch_size, python, host.key, host.facts)
    return run_own(run, names, shots=settings.shots[0], limit=settings.limit, chat=settings.chat)


def _evalscope(host: Host, asked: "Asked", sheets: "Sequence[Sheet]", folder: Path, python: Path | None) -> Found:
    from intaglio.evaluation.bridges.evalscope import EvalScope

    return EvalScope(folder, host.url, host.model, asked.concurrency, python, host.key, host.facts).run(sheets)
