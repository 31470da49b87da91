"""Several answers to each prompt, put in order by somebody: the step in which InstructGPT's labellers ranked.

Ouyang et al. 2022, section 3.4: K answers to a prompt are ranked together, which is quicker than judging pairs, and all
their pairs are learned as one (see `preferences`).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from intaglio.data.formats import KEYS
from intaglio.data.preference_encoding import PromptExample
from intaglio.engine.llm import LLM, Completion
from intaglio.engine.sampling_params import SamplingParams
from intaglio.evaluation.journal import Journal

__all__ = ["Candidates", "Order", "Ranker", "Verdict", "rank_prompts", "ranked_rows", "tally"]

Order = Literal["skip", "undo", "quit"]
"""What a ranker may want in place of a verdict: leave this prompt out, go back to the one before, or end for now."""

_ALIKE = "alike"
_SKIPPED = "skipped"


@dataclass(frozen=True)
class Verdict:
    """How good each answer is.

    Attributes:
        key: what the numbers are: `ranks` (lower is better, equal ones are a tie) or `scores` (higher is).
        values: for each answer.
    """

    key: Literal["ranks", "scores"]
    values: tuple[float, ...]


class Ranker(Protocol):
    """Whoever puts answers in order."""

    name: str

    def __call__(self, example: PromptExample, answers: Sequence[Completion]) -> Verdict | Order:
        """How good the answers to a prompt are, which stand in no order of merit."""


class Candidates:
    """The answers to prompts by number, different ones only; drawn for a few prompts at once.

    Args:
        llm: draws them.
        examples: the prompts.
        params: how; prompt i draws its `n` answers from `seed` + i, so that it has the same ones whenever asked.
        ahead: prompts that are drawn for together.
    """

    def __init__(
        self, llm: LLM, examples: Sequence[PromptExample], params: SamplingParams, seed: int, ahead: int = 8
    ) -> None:
        self._llm, self._examples, self._params, self._seed, self._ahead = llm, examples, params, seed, ahead
        self._drawn: dict[int, list[Completion]] = {}

    def __call__(self, number: int) -> list[Completion]:
        """The answers to prompt `number`."""
        if number not in self._drawn:
            self._drawn |= self._draw(range(number, min(number + self._ahead, len(self._examples))))
        return self._drawn[number]

    def _draw(self, numbers: Sequence[int]) -> dict[int, list[Completion]]:
        params = [self._params.model_copy(update={"seed": self._seed + number}) for number in numbers]
        made = self._llm.complete([self._examples[number].prompt.tolist() for number in numbers], params)
        each = self._params.n
        return {number: _distinct(made[i * each : (i + 1) * each]) for i, number in enumerate(numbers)}


def rank_prompts(
    examples: Sequence[PromptExample],
    candidates: Callable[[int], list[Completion]],
    ranker: Ranker,
    journal: Journal,
    extra: Mapping[str, Any] | None = None,
    done: Callable[[int], None] = lambda number: None,
) -> bool:
    """Has the answers to the prompts ranked that the journal does not know yet; whether all are done.

    Args:
        examples: the prompts.
        candidates: gives the answers to a prompt by its number.
        ranker: puts them in order.
        journal: gets a row of the ranked format for each prompt, or why there is none.
        extra: keys that each row gets besides.
        done: told how many are done.
    """
    while (number := len(journal.entries)) < len(examples):
        answers = candidates(number)
        verdict = ranker(examples[number], answers) if len(answers) > 1 else None
        match verdict:
            case "quit":
                return False
            case "undo":
                _back(journal)
            case "skip":
                journal.add(_SKIPPED)
            case None:
                journal.add(_ALIKE)
            case Verdict():
                journal.add(_row(examples[number], answers, verdict) | dict(extra or {}))
        done(len(journal.entries))
    return True


def ranked_rows(journal: Journal) -> list[dict[str, Any]]:
    """The rows of the ranked format."""
    return [entry for entry in journal.entries if isinstance(entry, dict)]


def tally(journal: Journal) -> dict[str, int]:
    """How many prompts were ranked, skipped, or had but one answer."""
    counts = Counter(entry for entry in journal.entries if isinstance(entry, str))
    return {"ranked": len(ranked_rows(journal)), _SKIPPED: counts[_SKIPPED], _ALIKE: counts[_ALIKE]}


def _back(journal: Journal) -> None:
    """Takes back the last verdict; what was entered unasked since goes with it."""
    while journal.entries:
        last = journal.entries[-1]
        journal.undo()
        if last != _ALIKE:
            return


def _distinct(made: Sequence[Completion]) -> list[Completion]:
    return list({completion.text: completion for completion in reversed(made)}.values())[::-1]


def _row(example: PromptExample, answers: Sequence[Completion], verdict: Verdict) -> dict[str, Any]:
    """Best answer first, with the columns of the prompt's row that are no format's own."""
    better = -1 if verdict.key == "scores" else 1
    order = sorted(range(len(answers)), key=lambda i: better * verdict.values[i])
    own = {key for keys in KEYS.values() for some in keys for key in some}
    prompt = example.source if isinstance(example.source, str) else [dict(message) for message in example.source]
    columns = {key: value for key, value in example.columns.items() if key not in own}
    ranked = {"answers": [answers[i].text for i in order], verdict.key: [verdict.values[i] for i in order]}
    return {"prompt": prompt, **ranked, **columns}
