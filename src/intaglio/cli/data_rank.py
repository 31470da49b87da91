"""`intaglio data rank`: answers of a model to prompts, put in order; rows of preferences to learn from."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intaglio.cli import options
from intaglio.errors import UserError
from intaglio.files import write_json_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from intaglio.data.examples import Counts
    from intaglio.data.preference_encoding import PromptExample
    from intaglio.engine.llm import LLM, Completion
    from intaglio.evaluation.ranking import Order, Ranker, Verdict

__all__ = ["rank"]

_SAID = {
    "skipped": "skipped",
    "alike": "with one answer only, several times",
    "too_long": "too long for the model",
    "turned_by_order": "pairs on which the judge changed its mind with their order",
    "without_verdict": "comparisons in which the judge named neither",
}
"""What is said of the numbers of a report that are not 0."""


def rank(
    model: options.Model,
    prompts: Annotated[str, typer.Argument(help="Rows with a prompt: a file, a folder, a glob, a data set's name.")],
    out: Annotated[Path, typer.Option(help="The JSON Lines file to write; a run that was ended goes on.")],
    answers: Annotated[int, typer.Option("-k", "--answers", min=2, max=26, help="Answers to each prompt.")] = 4,
    judge: Annotated[str | None, typer.Option(help="URL of a chat model that judges, pair by pair.")] = None,
    judge_model: Annotated[str | None, typer.Option(help="The judge's name; default: the server's first.")] = None,
    api_key: Annotated[str | None, typer.Option(help=f"Of the judge's server; default: ${options.API_KEY}.")] = None,
    reward: Annotated[
        str | None, typer.Option(help="FILE.py:function, a verifier of ours or a reward model that scores.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Prompts at most.")] = None,
    max_tokens: options.MaxTokens = 256,
    temperature: Annotated[float, typer.Option(help="Of the answers; above 0, or they would all be one.")] = 1.0,
    top_p: options.TopP = 1.0,
    seed: Annotated[int, typer.Option(help="Prompt i draws its answers from seed + i.")] = 0,
    adapter: options.Adapter = None,
    dtype: options.Dtype = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Draw answers to prompts and have them ranked: here, by a judge, or by a reward; writes rows for dpo and reward.

    At the terminal the order in which answers are shown tells nothing. Ctrl-C or q ends for now: the same command goes
    on where it was.
    """
    from intaglio.engine.sampling_params import SamplingParams
    from intaglio.evaluation.journal import Journal
    from intaglio.evaluation.ranking import Candidates, rank_prompts, ranked_rows, tally

    _refuse(out, temperature, judge, reward, judge_model, api_key)
    params = SamplingParams(n=answers, temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed)
    llm = options.load_llm(model, dtype, device, threads, adapter)
    examples, counts = _examples(prompts, llm, limit, max_tokens)
    ranker = _ranker(llm, judge, judge_model, api_key, reward, device)
    settings = {
        "model": model,
        "adapter": None if adapter is None else str(adapter),
        "prompts": _digest(examples),
        "ranked by": ranker.name,
        **params.model_dump(include={"n", "temperature", "top_p", "max_tokens", "seed"}),
    }
    journal = Journal(_journal(out), settings)
    candidates = Candidates(llm, examples, params, seed)
    with _progress(len(examples), len(journal.entries), shown=bool(judge or reward)) as done:
        try:
            finished = rank_prompts(examples, candidates, ranker, journal, {"ranked_by": ranker.name}, done)
        except KeyboardInterrupt:
            finished = False
    write_json_lines(out, ranked_rows(journal))
    if finished:
        journal.remove()
    report = {"path": str(out), "prompts": len(examples), **tally(journal), "too_long": counts.dropped_long}
    report |= {"left": len(examples) - len(journal.entries), "ranked_by": ranker.name, **_bias(ranker)}
    typer.echo(json.dumps(report) if as_json else _words(report))


class _RewardRanker:
    """See `Ranker`; by a reward of a recipe's kind."""

    def __init__(self, name: str, reward: "Callable[[Any, Any], tuple[Any, Any]]") -> None:
        self.name, self._reward = name, reward

    def __call__(self, example: "PromptExample", answers: "Sequence[Completion]") -> "Verdict | Order":
        """See `Ranker`."""
        from intaglio.evaluation.ranking import Verdict
        from intaglio.training.rollout import Answer

        made = [Answer(one.token_ids, one.log_probs, one.text, one.finish_reason == "stop") for one in answers]
        scores = self._reward([example] * len(made), made)[0]  # (answers,)
        return "skip" if scores.isnan().any() else Verdict("scores", tuple(scores.tolist()))


def _refuse(
    out: Path, temperature: float, judge: str | None, reward: str | None, judge_model: str | None, api_key: str | None
) -> None:
    if out.suffix != ".jsonl":
        raise UserError("we write JSON Lines", where=str(out), mend="end its name in .jsonl")
    if out.exists() and not _journal(out).exists():
        raise UserError("exists already", where=str(out), mend="choose another file or remove it")
    if temperature <= 0:
        raise UserError("would draw the same answer each time", where="--temperature", mend="take 0.7 or 1")
    if judge and reward:
        raise UserError("both rank the answers", where="--judge and --reward", mend="choose one of them")
    for name, given in (("--judge-model", judge_model), ("--api-key", api_key)):
        if given and not judge:
            raise UserError("is for a judge", where=name, mend="give --judge too")


def _journal(out: Path) -> Path:
    return out.with_name(f".{out.name}.journal")


def _examples(source: str, llm: "LLM", limit: int | None, max_tokens: int) -> "tuple[list[PromptExample], Counts]":
    """The prompts as ids, each once, and what became of the rows."""
    from intaglio.data.datasets import data_rows, is_data_set
    from intaglio.data.examples import Counts, MaskPolicy
    from intaglio.data.preference_encoding import encode_prompts
    from intaglio.data.preferences import prompt_of
    from intaglio.data.readers import read_rows

    named = not Path(source).exists() and is_data_set(source)
    rows = read_rows(data_rows(source, say=lambda line: typer.echo(line, err=True)) if named else source)
    counts, context = Counts(), llm.model.spec.context_limit
    longest = None if context is None else context - max_tokens
    found = encode_prompts(map(prompt_of, rows), llm.tokenizer, MaskPolicy(), counts, longest)
    examples = list(islice(_once(found), limit))
    if not examples:
        raise UserError(f"no prompt ({counts.dropped_long} of {counts.read} too long)", where=source)
    return examples, counts


def _once(examples: "Iterator[PromptExample]") -> "Iterator[PromptExample]":
    seen: set[bytes] = set()
    for example in examples:
        key = example.prompt.tobytes()
        if key not in seen:
            seen.add(key)
            yield example


def _digest(examples: "Sequence[PromptExample]") -> str:
    """Tells these prompts from others."""
    return hashlib.sha256(b"\0".join(example.prompt.tobytes() for example in examples)).hexdigest()[:16]


def _ranker(
    llm: "LLM", judge: str | None, judge_model: str | None, api_key: str | None, reward: str | None, device: str
) -> "Ranker":
    if judge is not None:
        from intaglio.evaluation.judge import JudgeRanker
        from intaglio.retrieval.remote import UrlAnswerer

        answerer = UrlAnswerer(judge, judge_model, api_key or os.environ.get(options.API_KEY))
        return JudgeRanker(answerer.model, answerer)
    if reward is not None:
        return _RewardRanker(reward, _rewards(reward, llm, device))
    from intaglio.cli.ranking_desk import Desk

    return Desk()


def _rewards(reward: str, llm: "LLM", device: str) -> "Callable[[Any, Any], tuple[Any, Any]]":
    from intaglio.evaluation.verifiers import VERIFIERS
    from intaglio.training.objectives.rl_specs import RewardSpec
    from intaglio.training.rl.rewards import build_rewards

    kind = "function" if ":" in reward or reward in VERIFIERS else "model"
    spec = RewardSpec.model_validate({kind: reward})
    if ".py:" in reward:
        typer.echo(f"running code of your own: {reward}", err=True)
    return build_rewards([spec], llm.tokenizer, "float32", device)


@contextmanager
def _progress(total: int, begun: int, *, shown: bool) -> "Iterator[Callable[[int], None]]":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as progress:
        task = progress.add_task("ranking", total=total, completed=begun)
        yield lambda number: progress.update(task, completed=number)


def _bias(ranker: "Ranker") -> dict[str, Any]:
    """What a judge's verdicts owe to the order of the answers."""
    from intaglio.evaluation.judge import JudgeRanker

    if not isinstance(ranker, JudgeRanker):
        return {}
    return {"judged_pairs": ranker.pairs, "turned_by_order": ranker.turned, "without_verdict": ranker.silent}


def _words(report: dict[str, Any]) -> str:
    parts = [f"{report[key]} {words}" for key, words in _SAID.items() if report.get(key)]
    lines = [f"{report['ranked']} of {report['prompts']} prompts ranked in {report['path']}", *parts]
    if report["left"]:
        lines.append(f"{report['left']} left: the same command goes on")
    return "\n  ".join(lines)
