"""What is measured, as evaluations see it: likelihoods of texts, and answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from intaglio.engine.sampling_params import SamplingParams
from intaglio.text.messages import Message
from intaglio.text.tokenizer import Tokenizer

__all__ = ["Answer", "Likelihood", "Prompt", "Subject", "SubjectGoneError", "Unanswered"]

Prompt = str | Sequence[Message]
"""A text to continue as it is, or a chat."""


@dataclass(frozen=True)
class Likelihood:
    """How likely a continuation is.

    Attributes:
        nats: ln p of all its tokens.
        num_tokens: how many those are.
        greedy: whether each of them was the likeliest.
    """

    nats: float
    num_tokens: int
    greedy: bool


@dataclass(frozen=True)
class Answer:
    """What was written.

    Attributes:
        text: without special tokens, cut before a stop string.
        finish_reason: `stop` or `length`.
        prompt_tokens: of the prompt.
        token_ids: of the text, where they are known.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Unanswered:
    """No answer, or one that says nothing: why. It is reported, and never averaged in."""

    reason: str


class SubjectGoneError(Exception):
    """Whoever is asked does not answer any more; what was answered before stands. The text says who and why."""


class Subject(Protocol):
    """A model to be measured."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None where only a server knows it."""

    @property
    def context(self) -> int | None:
        """Tokens of a text and its answer together at most; None where nobody knows, or any number will do."""

    def identity(self) -> dict[str, Any]:
        """What a repeat needs: hash of the model and of the template, URL, dtype, versions."""

    def likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood | Unanswered]:
        """Of each (context, continuation), in order.

        Blanks at the context's end go to the continuation, and the two are tokenised as one text, as lm-eval does, so
        that numbers agree.

        Raises:
            SubjectGoneError: there is nobody to ask any more.
        """

    def log_probs(self, rows: Sequence[Sequence[int]]) -> list[list[float] | Unanswered]:
        """ln p of each token of each row but its first.

        Raises:
            SubjectGoneError: there is nobody to ask any more.
        """

    def answers(self, prompts: Sequence[Prompt], params: SamplingParams) -> list[Answer | Unanswered]:
        """What is written to each prompt, in order.

        Raises:
            UserError: a chat, and no template to render it with.
            SubjectGoneError: there is nobody to ask any more.
        """
