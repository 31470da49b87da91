"""Two models on the same prompts: `intaglio eval A --against B`."""

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from intaglio.errors import UserError

if TYPE_CHECKING:
    from intaglio.cli.eval_request import Asked
    from intaglio.engine.sampling_params import SamplingParams
    from intaglio.evaluation.duel import Duel, Question, Referee
    from intaglio.evaluation.subjects.subject import Subject
    from intaglio.evaluation.tasks.item import Item

__all__ = ["FORMAT", "Against", "dueled", "say_duel"]

FORMAT: Final = "intaglio-duel/1"
BOUTS: Final = "bouts.jsonl"
LONGEST: Final = 256
"""Tokens of an answer where nobody says."""


@dataclass(frozen=True)
class Against:
    """The other model, and who compares.

    Attributes:
        model: a name, directory or URL.
        adapter: of it.
        prompts: a file of prompts, in place of a task.
        judge: URL of a judge, and its model's name there.
        reward: a reward model's directory, a verifier, or FILE.py:function.
    """

    model: str
    adapter: Path | None = None
    prompts: str | None = None
    judge: str | None = None
    judge_model: str | None = None
    reward: str | None = None


def dueled(
    asked: "Asked", against: Against, out: Path | None, watch: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """Has both answer and be compared, what is known already left out; the report, which is written too.

    Raises:
        UserError: options that do not go together, or what anybody asked refuses.
        SubjectGoneError: there is nobody to ask any more; what was decided is kept.
    """
    from intaglio.evaluation.journal import Journal
    from intaglio.fetch import claimed
    from intaglio.files import write_json

    _refuse(asked, against)
    questions, params = _questions(asked, against)
    referee = _referee(asked, against)
    ours, theirs = asked.subject(), _other(asked, against).subject()
    head = _head(questions, params, referee, (ours, theirs))
    folder = out or Path("runs", _folder_name(ours, theirs, head))
    with claimed(folder / ".lock"):
        journal = Journal(folder / BOUTS, head)
        told: dict[str, Any] = {
            "batch": asked.batch_size,
            "done": lambda count: watch("compared", count, len(questions)),
        }
        found = _played(questions, ours, theirs, referee, params, journal, told)
        report = {"format": FORMAT, **head, **found.as_json(), "path": str(folder)}
        write_json(folder / "duel.json", report)
    return report


def say_duel(report: dict[str, Any]) -> str:
    """The report for people."""
    names = [report[side]["name"] for side in ("ours", "theirs")]
    lines = [f"{names[0]} against {names[1]}, by {report['referee']}: {report['items']} items"]
    lines.append(f"  {report['wins']} won, {report['ties']} tied, {report['losses']} lost")
    if report["items"]:
        rate, low, high = report["rate"]
        lines.append(
            f"  won {rate:.1%} ({low:.1%} to {high:.1%}, 95 %; ties count half); sign test p = {report['p']:.2g}"
        )
    if report["turned_by_order"]:
        lines.append(f"  {report['turned_by_order']} ties because the judge turned with the order")
    for one in report["unanswered"][:3]:
        lines.append(f"  left out: {one['id']}: {one['reason']}")
    if len(report["unanswered"]) > 3:
        lines.append(f"  and {len(report['unanswered']) - 3} more were left out")
    return "\n".join([*lines, f"results: {report['path']}"])


def _refuse(asked: "Asked", against: Against) -> None:
    if against.judge and against.reward:
        raise UserError("both compare the answers", where="--judge and --reward", mend="choose one of them")
    if against.judge_model and not against.judge:
        raise UserError("is for a judge", where="--judge-model", mend="give --judge too")
    if bool(asked.tasks) == bool(against.prompts):
        raise UserError("what is asked comes from one of them", where="--tasks and --prompts", mend="give one")
    if against.prompts and not (against.judge or against.reward):
        what = "prompts have no right answer whose likelihood could be compared"
        raise UserError(what, where="--prompts", mend="give --judge URL or --reward MODEL")


def _other(asked: "Asked", against: Against) -> "Asked":
    """The same options for the other model, but for those that belong to a kind of model."""
    other = replace(asked, model=against.model, adapter=against.adapter, beside=False, served=None)
    if other.is_url:
        return replace(other, dtype=None, threads=None)
    return replace(other, api_key=None, tokenizer=None)


def _questions(asked: "Asked", against: Against) -> "tuple[list[Question], SamplingParams]":
    from intaglio.engine.sampling_params import SamplingParams

    found, stop, longest = _of_prompts(asked, against.prompts) if against.prompts else _of_task(asked)
    if not found:
        raise UserError("there is nothing to ask", where=against.prompts or asked.tasks)
    seed = asked.seed if asked.temperature else None
    how: dict[str, Any] = {"temperature": asked.temperature, "seed": seed, "stop": () if asked.chat else stop}
    return found, SamplingParams(max_tokens=asked.max_tokens or longest, **how)


def _of_task(asked: "Asked") -> "tuple[list[Question], tuple[str, ...], int]":
    from intaglio.evaluation.duel import Question
    from intaglio.evaluation.framing import framed
    from intaglio.evaluation.runs import units_of
    from intaglio.evaluation.tasks.read import read_tasks

    units = units_of(read_tasks(asked.tasks, listed=asked.list_choices), asked.settings())
    if len(units) != 1:
        raise UserError("two models are compared on one task at a time", where="--tasks and --shots")
    task, shots = units[0].task, units[0].shots
    found = [
        Question(item.id, framed(task, item, some, chat=asked.chat), _right(item), _fields(item))
        for item, some in zip(task.items, shots, strict=True)
    ]
    return found, task.stop, task.max_tokens


def _right(item: "Item") -> tuple[str, ...]:
    """As continuations."""
    return item.right if item.choices else tuple(f" {reference}" for reference in item.references)


def _fields(item: "Item") -> dict[str, Any]:
    return {"answer": next(iter(item.right), None), **item.fields}


def _of_prompts(asked: "Asked", source: str) -> "tuple[list[Question], tuple[str, ...], int]":
    from itertools import islice

    from intaglio.data.preferences import prompt_of
    from intaglio.data.readers import read_rows
    from intaglio.evaluation.duel import Question

    def said(prompt: Any) -> Any:
        chat = asked.chat and isinstance(prompt, str)
        return [{"role": "user", "content": prompt}] if chat else prompt

    rows = map(prompt_of, read_rows(source))
    found = [Question(row.where, said(row.prompt), fields=row.columns) for row in islice(rows, asked.limit)]
    return found, (), LONGEST


def _referee(asked: "Asked", against: Against) -> "Referee | None":
    """None: the likelihoods of right answers."""
    from intaglio.evaluation.duel import JudgeReferee, ScoreReferee

    if against.judge:
        from intaglio.retrieval.remote import UrlAnswerer

        answerer = UrlAnswerer(against.judge, against.judge_model, asked.key)
        return JudgeReferee(f"the judge {answerer.model}", answerer)
    if against.reward:
        return ScoreReferee(f"the reward {against.reward}", _reward(against.reward, asked.device))
    return None


def _reward(name: str, device: str) -> "Callable[[Sequence[Question], Sequence[str]], Sequence[float]]":
    from intaglio.evaluation.verifiers import VERIFIERS, verifier_of

    if name not in VERIFIERS and ".py:" not in name:
        return _reward_model(name, device)
    if ".py:" in name:
        print(f"running code of your own: {name}", file=sys.stderr)
    verifier = verifier_of(name)

    def score(questions: "Sequence[Question]", texts: Sequence[str]) -> Sequence[float]:
        return verifier([one.prompt for one in questions], texts, [one.fields for one in questions])

    return score


def _reward_model(name: str, device: str) -> "Callable[[Sequence[Question], Sequence[str]], Sequence[float]]":
    import numpy as np

    from intaglio.data.preference_encoding import PromptExample
    from intaglio.training.rl.rewards import ModelReward
    from intaglio.training.rl.scorers import load_scorer
    from intaglio.training.rollout import Answer

    model, tokenizer = load_scorer(name, "float32", device, "--reward")
    reward = ModelReward(name, model, tokenizer, same=False)

    def score(questions: "Sequence[Question]", texts: Sequence[str]) -> Sequence[float]:
        sources = [one.prompt if isinstance(one.prompt, str) else tuple(one.prompt) for one in questions]
        none = np.empty(0, dtype=np.int32)
        asked = [PromptExample(none, one.id, source=source) for one, source in zip(questions, sources, strict=True)]
        return reward(asked, [Answer([], [], text, ended=True) for text in texts])

    return score


def _played(
    questions: "Sequence[Question]",
    ours: "Subject",
    theirs: "Subject",
    referee: "Referee | None",
    params: "SamplingParams",
    journal: Any,
    told: dict[str, Any],
) -> "Duel":
    from intaglio.evaluation.duel import duel, likelihood_duel

    if referee is None:
        return likelihood_duel(questions, ours, theirs, journal, **told)
    return duel(questions, ours, theirs, referee, params, journal, **told)


def _head(
    questions: "Sequence[Question]",
    params: "SamplingParams",
    referee: "Referee | None",
    subjects: "tuple[Subject, Subject]",
) -> dict[str, Any]:
    """What decides the outcome, as JSON has it."""
    facts = [[one.id, _plain(one.prompt), one.right, dict(one.fields)] for one in questions]
    asked = json.dumps(facts, sort_keys=True, default=str)
    digest = hashlib.sha256(asked.encode()).hexdigest()
    sides = dict(zip(("ours", "theirs"), [one.identity() for one in subjects], strict=True))
    name = "the likelihood of right answers" if referee is None else referee.name
    how = params.model_dump(mode="json", exclude_defaults=True) if referee is not None else {}
    told: dict[str, Any] = json.loads(json.dumps({**sides, "referee": name, "questions": digest, "settings": how}))
    return told


def _plain(prompt: Any) -> Any:
    return prompt if isinstance(prompt, str) else [dict(message) for message in prompt]


def _folder_name(ours: "Subject", theirs: "Subject", head: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()
    return f"duel-{ours.name}-{theirs.name}-{digest[:8]}".replace("/", "-")
