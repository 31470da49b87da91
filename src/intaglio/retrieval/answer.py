"""A question in, an answer from the documents out, with its sources."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from intaglio.errors import UserError
from intaglio.retrieval.answerers import Answerer
from intaglio.retrieval.citations import Citation, cite
from intaglio.retrieval.prompt import NOT_FOUND, Prompt, fitted_prompt
from intaglio.retrieval.search import Hit, Reranker, Searcher
from intaglio.retrieval.threshold import SEEN, strength, threshold
from intaglio.text.messages import Message

__all__ = ["Answer", "Grounded", "Grounding", "answer"]


@dataclass(frozen=True)
class Answer:
    """What was answered.

    Attributes:
        text: the answer; `prompt.NOT_FOUND` where the documents hold none.
        citations: what it stands on.
        found: whether the documents have anything to do with the question.
        hits: what was found, the best first.
        prompt: what the model read; None where it was not asked.
    """

    text: str
    citations: list[Citation]
    found: bool
    hits: list[Hit]
    prompt: Prompt | None


@dataclass(frozen=True)
class Grounded:
    """What was found for a question.

    Attributes:
        hits: passages, the best first.
        prompt: what a model is to be asked; None where the documents do not hold an answer.
    """

    hits: list[Hit]
    prompt: Prompt | None


@dataclass(frozen=True)
class Grounding:
    """How a question becomes a prompt with sources.

    Attributes:
        searcher: finds them.
        budget: tokens of the whole prompt at most.
        passages: that are looked for.
        rerank: orders them anew.
    """

    searcher: Searcher
    budget: int
    passages: int = 5
    rerank: Reranker | None = None

    def ground(self, messages: Sequence[Message], count: Callable[[Sequence[Message]], int]) -> Grounded:
        """Finds sources for the last message of a conversation, which is the user's.

        A question that finds nothing by itself ("and in winter?") is tried once more behind the one before it.

        Args:
            messages: the conversation.
            count: tokens of messages, as the model reads them.

        Raises:
            UserError: see `fitted_prompt`, `Searcher.search`.
        """
        asked = [message["content"] for message in messages if message["role"] == "user"]
        hits: list[Hit] = []
        for question in (asked[-1], "\n".join(asked[-2:]))[: len(asked)]:
            found = self.searcher.search(question, max(self.passages, SEEN), rerank=self.rerank)
            hits = found[: self.passages]
            if strength(found) > threshold(self.searcher):
                return Grounded(hits, fitted_prompt(messages, hits, count, self.budget))
        return Grounded(hits, None)

    def cite(self, text: str, grounded: Grounded) -> list[Citation]:
        """What an answer to the prompt stands on."""
        return cite(text, grounded.prompt.sources, self.searcher.index) if grounded.prompt else []


def answer(
    grounding: Grounding,
    question: str,
    model: Answerer,
    max_tokens: int = 256,
    say: Callable[[str], None] = lambda piece: None,
) -> Answer:
    """Answers a question from the documents.

    Args:
        grounding: finds the sources and makes the prompt.
        question: in the user's words.
        model: writes the answer, unless nothing was found.
        max_tokens: of the answer.
        say: is given each piece of the answer as it comes.

    Raises:
        UserError: prompt and answer are more than the model reads; or see `Grounding.ground`, `Answerer`.
    """
    if model.context is not None and grounding.budget + max_tokens > model.context:
        what = f"{grounding.budget} tokens of prompt and {max_tokens} of answer are more than the model reads"
        raise UserError(what, mend=f"{model.context} together at most")
    grounded = grounding.ground([{"role": "user", "content": question}], model.count)
    pieces = model.stream(grounded.prompt.messages, max_tokens) if grounded.prompt else [NOT_FOUND]
    text = "".join(_said(pieces, say))
    return Answer(text, grounding.cite(text, grounded), grounded.prompt is not None, grounded.hits, grounded.prompt)


def _said(pieces: Iterable[str], say: Callable[[str], None]) -> Iterator[str]:
    for piece in pieces:
        say(piece)
        yield piece
