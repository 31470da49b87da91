"""Tasks of lm-evaluation-harness's own, by its names or from its YAML files, with its findings as our results.

Prompts, shots, filters and metrics are its own. Their rows come from where it finds them: local files, what its cache
holds, or a hub where the user's environment says `HF_HUB_OFFLINE=0`.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from intaglio.errors import UserError
from intaglio.evaluation.bridges.lm_eval import LmEval, first
from intaglio.evaluation.results import Outcome, TaskResult
from intaglio.files import read_text

__all__ = ["PREFIX", "own_names", "run_own"]

PREFIX: Final = "lm-eval:"
"""Before the name of a task, or the path of a YAML file."""
_TASK: Final = re.compile(r"^task:\s*[\"']?([\w./-]+)", re.MULTILINE)


def own_names(tasks: str) -> tuple[list[str], str]:
    """Which of the tasks in a list with commas are lm-eval's own, and the list of the others."""
    names = [name.strip() for name in tasks.split(",") if name.strip()]
    own = [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]
    return own, ",".join(name for name in names if not name.startswith(PREFIX))


def run_own(
    run: LmEval, names: Sequence[str], *, shots: int, limit: int | None, chat: bool
) -> tuple[dict[str, TaskResult], dict[str, str]]:
    """What it finds for each of its tasks, those of a group one by one, and the versions that had a say.

    Args:
        run: with a folder for these tasks alone.
        names: without the prefix.
        shots: worked examples; 0: as many as the task says.
        limit: items of a task at most, the first ones.
        chat: whether the tokenizer's chat template is put around them.

    Raises:
        UserError: a YAML file names no task, or they lie in several folders.
        OutsideError: it failed, an unknown name included.
    """
    files = [Path(name) for name in names if name.endswith((".yaml", ".yml"))]
    known = [name for name in names if not name.endswith((".yaml", ".yml"))]
    folders = {file.absolute().parent for file in files}
    if len(folders) > 1:
        raise UserError("lm-eval looks for YAML files in one folder", where=str(files[-1]), mend="put them together")
    more = {"include_path": str(next(iter(folders)))} if folders else {}
    asked: dict[str, Any] = {"num_fewshot": shots or None, "limit": limit, "apply_chat_template": chat, **more}
    run.begin({"own": list(names), **asked})
    given = {key: value for key, value in asked.items() if value}
    versions = run.ask([*known, *map(_task_of, files)], given, {})
    return {f"{PREFIX}{name}": _result(f"{PREFIX}{name}", rows) for name, rows in run.samples()}, versions


def _task_of(file: Path) -> str:
    found = _TASK.search(read_text(file))
    if found is None:
        raise UserError("names no task", where=str(file), mend="it needs a line `task: NAME`")
    return found[1]


def _result(name: str, rows: Sequence[Mapping[str, Any]]) -> TaskResult:
    told = json.dumps([[row.get("doc_hash"), row.get("prompt_hash"), row.get("target_hash")] for row in rows])
    kind = "choice" if rows and len(rows[0]["resps"]) > 1 else "generation"
    outcomes = tuple(_outcome(name, row) for row in rows)
    return TaskResult(kind, hashlib.sha256(told.encode()).hexdigest(), "lm-eval", outcomes)


def _outcome(name: str, row: Mapping[str, Any]) -> Outcome:
    """Its row of one item; where it has filters, those of one filter."""
    asked = list(row["arguments"].values()) if isinstance(row["arguments"], dict) else []
    said = [first(answer) for answer in row["resps"]]
    chosen = len(said) > 1
    nats = [float(one) for one in said] if chosen else []
    best = max(range(len(nats)), key=nats.__getitem__) if chosen else 0
    prediction = asked[best]["arg_1"] if chosen and asked else first(row["filtered_resps"])
    scores = {metric: float(row[metric]) for metric in row["metrics"] if isinstance(row[metric], int | float)}
    marked = f"{row['doc_id']}" if row.get("filter", "none") == "none" else f"{row['doc_id']} {row['filter']}"
    return Outcome(
        task=name,
        id=marked,
        category="" if row.get("filter", "none") == "none" else str(row["filter"]),
        where="",
        prompt=asked[0]["arg_0"] if asked else "",
        prediction=str(prediction).strip(),
        right=[str(row["target"])],
        scores=scores,
        nats=nats,
        text="" if chosen else str(said[0]),
    )
