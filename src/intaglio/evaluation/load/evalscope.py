"""The same load sent by EvalScope's `perf`, and its files read into our summary.

EvalScope is run as it is, from an environment of its own: each level is one run over a file of whole request bodies
(or, of several turns, of conversations), made as ours are. Its data base has every request with the times that it took;
what those come to is counted by our definitions, and its own summary stands beside, as `evalscope`. Its latency goes to
the last message of the stream, which is the usage; its percentiles are nearest ranks; and an answer without content has
a TTFT of 0, which is left out here.
"""

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Iterator
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from intaglio.errors import UserError
from intaglio.evaluation.bridges.outside import find_program, run_program
from intaglio.evaluation.load.arrivals import ClosedLoop, Level, OpenLoop, Poisson
from intaglio.evaluation.load.conversations import Conversation
from intaglio.evaluation.load.latency import Sample
from intaglio.evaluation.load.prompts import FilePrompts, RandomPrompts, Vocabulary, words_of
from intaglio.evaluation.load.run import Measured, Observer, Plan, summarise
from intaglio.evaluation.load.target import PATHS, Target, name_model
from intaglio.files import read_json, write_json_lines

__all__ = ["drive"]

_RUN = "run"  # the folder of its files, in that of a level


def drive(
    target: Target, plan: Plan, folder: Path, python: Path | None = None, observer: Observer | None = None
) -> list[Measured]:
    """One server at each level of the plan, by EvalScope.

    Args:
        target: the server.
        plan: as for ours; without a search.
        folder: where EvalScope's own files go, a folder for each level.
        python: the Python beside which EvalScope is; see `find_program`.
        observer: is told of the levels, not of single requests.

    Raises:
        UserError: EvalScope is not there, or cannot do what is asked for; or the server does not answer.
        OutsideError: it failed.
    """
    program, observer = find_program("evalscope", python).absolute(), observer or Observer()
    plan.check(target)
    _check(plan)
    vocabulary = asyncio.run(_vocabulary(target, plan))
    measured = []
    for level in plan.levels:
        observer.begins(target, level, plan.count(level))
        measured.append(_level(target, plan, level, vocabulary, folder, program))
        observer.ends(measured[-1])
    return measured


def _check(plan: Plan) -> None:
    for level in plan.levels:
        if isinstance(level, OpenLoop) and not isinstance(level.moments, Poisson):
            raise UserError(f"EvalScope does not know {level.moments.name}", where="--arrivals", mend="take poisson")
        if isinstance(level, OpenLoop) and plan.prompts.multi_turn:
            raise UserError("EvalScope has no open loop of several turns", where="--rate", mend="give --concurrency")
        if plan.count(level) is None:
            raise UserError("EvalScope wants a number as well", where="--duration", mend="give --requests too")
    if plan.prompts.multi_turn and not _one_length(plan):
        raise UserError(
            "EvalScope's answers in conversations have one length", where="--output-tokens", mend="give a number"
        )
    if plan.search is not None:
        raise UserError("a search is ours to make", where="--find", mend="leave out --with evalscope")


def _one_length(plan: Plan) -> bool:
    prompts = plan.prompts
    own = isinstance(prompts, FilePrompts) and any(turn.max_tokens for row in prompts.rows for turn in row)
    return prompts.output_tokens.said.isdigit() and not own


async def _vocabulary(target: Target, plan: Plan) -> Vocabulary:
    async with target.client() as client:
        await name_model(client, target)
        return await words_of(client, target) if isinstance(plan.prompts, RandomPrompts) else Vocabulary(())


def _level(target: Target, plan: Plan, level: Level, vocabulary: Vocabulary, folder: Path, program: Path) -> Measured:
    count = plan.count(level)
    assert count is not None
    place = (folder / f"{level.kind}-{level.load:g}").resolve()
    shutil.rmtree(place, ignore_errors=True)
    rows = plan.prompts.conversations(vocabulary, target.endpoint, f"{level.kind} {level.load:g}")
    file = place / "prompts.jsonl"
    write_json_lines(file, (_row(target, plan, row) for row in islice(rows, count + plan.warmup)))
    run_program([str(program), *_arguments(target, plan, level, count, file)], place, {})
    data, told = _results(place / _RUN)
    samples = list(_samples(data, plan.prompts.multi_turn))
    found = summarise(samples, plan) | {"evalscope": told}
    assert target.model is not None
    return Measured(f"{target.name} (evalscope)", target.url, target.model, level, samples, found)


def _row(target: Target, plan: Plan, conversation: Conversation) -> Any:
    """What EvalScope reads as a whole body; of several turns, as messages whose answers it replaces by the model's."""
    if not plan.prompts.multi_turn:
        return target.body(conversation[0].said, conversation[0].max_tokens)
    messages: list[dict[str, Any]] = []
    for turn in conversation:
        said = [{"role": "user", "content": turn.said}] if isinstance(turn.said, str) else list(turn.said)
        messages += [*said, {"role": "assistant", "content": ""}]
    return messages[:-1]


def _arguments(target: Target, plan: Plan, level: Level, count: int, file: Path) -> Iterator[str]:
    assert target.model is not None
    yield from ("perf", "--api", "openai", "--url", target.url + PATHS[target.endpoint], "--model", target.model)
    yield from ("--stream", "--no-test-connection", "--no-timestamp")
    yield from ("--outputs-dir", str(file.parent), "--name", _RUN)
    yield from ("--number", str(count), "--warmup-num", str(plan.warmup), "--total-timeout", str(int(target.timeout)))
    yield from ("--dataset-path", str(file), "--data-source", "local", "--temperature", "0")
    if plan.prompts.multi_turn:
        yield from ("--multi-turn", "--dataset", "custom_multi_turn", "--max-tokens", plan.prompts.output_tokens.said)
        yield from ("--extra-args", json.dumps(dict(target.fields)))
    else:
        yield from ("--dataset", "line_by_line")
    if isinstance(level, ClosedLoop):
        yield from ("--parallel", str(level.concurrency))
    else:
        yield from ("--open-loop", "--rate", f"{level.rate:g}")
    if target.endpoint == "completions":
        yield "--no-apply-chat-template"
    if plan.duration:
        yield from ("--duration", f"{plan.duration:g}")
    if target.api_key:
        yield from ("--api-key", target.api_key)


def _results(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Its data base, and its own summary and percentiles."""
    found = sorted(folder.glob("*/benchmark_data.db"))
    if not found:
        raise UserError("EvalScope left no data base", where=str(folder))
    told = {part: read_json(found[-1].with_name(f"benchmark_{part}.json")) for part in ("summary", "percentile")}
    return found[-1], told


def _samples(file: Path, multi_turn: bool) -> Iterator[Sample]:
    """Its requests as ours; the column of answers, which is pickled, is not read."""
    columns = "request, start_time, completed_time, success, latency, first_chunk_latency, inter_token_latencies, "
    columns += "prompt_tokens, completion_tokens"
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    try:
        for row in connection.execute(f"SELECT {columns} FROM result ORDER BY start_time"):
            yield _sample(json.loads(row[0] or "{}"), multi_turn, *row[1:])
    finally:
        connection.close()


def _sample(
    body: dict[str, Any],
    multi_turn: bool,
    start: float,
    end: float,
    success: int,
    latency: float | None,
    first: float | None,
    gaps: str | None,
    read: int | None,
    made: int | None,
) -> Sample:
    turn = sum(message["role"] == "assistant" for message in body.get("messages", ())) if multi_turn else 0
    wanted = body.get("max_tokens") or 0
    if not success:
        return Sample(start, wanted, end=end, turn=turn, error="failed", detail="see log.txt")
    content = list(accumulate([start + first, *json.loads(gaps or "[]")])) if first else []
    last = None if latency is None else start + latency
    return Sample(start, wanted, None, content, last, end, read or 0, made or 0, turn=turn)
