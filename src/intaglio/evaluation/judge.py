"""A chat model as the judge of answers: each pair in both orders, since judges favour a place (Zheng et al. 2023).

How good an answer is: the mean over the others of the probability that the judge names it, both orders averaged.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final, Protocol

from intaglio.data.preference_encoding import PromptExample
from intaglio.data.preferences import Said
from intaglio.data.turns import text_of
from intaglio.engine.llm import Completion
from intaglio.evaluation.ranking import Verdict
from intaglio.text.messages import Message

__all__ = ["Judge", "JudgeRanker", "favour_of_first"]

_QUESTION: Final = (
    "Two assistants answered the same conversation. Say which answer is the better one: right, helpful, harmless and "
    "no longer than it need be. Do not mind their order.\n\n{asked}\n\n--- Answer A ---\n{first}\n\n--- Answer B ---\n"
    "{second}\n\nWhich answer is better? Reply with the letter A or B alone."
)
_UNDECIDED: Final = 0.5


class Judge(Protocol):
    """A chat model that tells its likeliest first tokens."""

    def first_words(self, messages: Sequence[Message]) -> dict[str, float]:
        """The likeliest first tokens of the answer, with their log-probabilities."""


@dataclass
class JudgeRanker:
    """See `Ranker`.

    Attributes:
        name: of the judge.
        judge: the model.
        pairs: that were compared so far.
        turned: of these, those in which the other answer won once both had changed places.
        silent: comparisons in which the judge named neither.
    """

    name: str
    judge: Judge = field(repr=False)
    pairs: int = 0
    turned: int = 0
    silent: int = 0

    def __call__(self, example: PromptExample, answers: Sequence[Completion]) -> Verdict:
        """See `Ranker`."""
        wins = [0.0] * len(answers)
        for one, other in combinations(range(len(answers)), 2):
            share = self._compared(example, answers[one].text, answers[other].text)
            wins[one] += share
            wins[other] += 1 - share
        return Verdict("scores", tuple(round(won / (len(answers) - 1), 4) for won in wins))

    def _compared(self, example: PromptExample, one: str, other: str) -> float:
        """The probability that `one` is the better."""
        before, after = self._first(example, one, other), 1 - self._first(example, other, one)
        self.pairs += 1
        self.turned += (before - 0.5) * (after - 0.5) < 0
        return (before + after) / 2

    def _first(self, example: PromptExample, first: str, second: str) -> float:
        found = favour_of_first(self.judge, example.source, first, second)
        self.silent += found is None
        return _UNDECIDED if found is None else found


def favour_of_first(judge: Judge, asked: Said, first: str, second: str) -> float | None:
    """The probability that the judge names the first answer among the two; None where it names neither.

    Args:
        judge: the model.
        asked: the prompt that both answer, a text or messages.
        first, second: the answers, in the order in which it reads them.
    """
    question = _QUESTION.format(asked=_conversation(asked), first=first, second=second)
    words = judge.first_words([{"role": "user", "content": question}])
    a, b = (_probability(words, letter) for letter in "AB")
    return a / (a + b) if a + b else None


def _probability(words: Mapping[str, float], letter: str) -> float:
    return sum(math.exp(value) for word, value in words.items() if word.strip().upper() == letter)


def _conversation(asked: Said) -> str:
    if isinstance(asked, str):
        return asked
    return "\n\n".join(f"--- {message['role']} ---\n{text_of(message)}" for message in asked)
