"""Ordering the head of a list anew, by models that read question and passage together."""

import math
from collections.abc import Sequence
from typing import Any

from intaglio.data.unpacking import needs
from intaglio.errors import UserError
from intaglio.retrieval.answerers import Answerer

__all__ = ["CrossEncoderReranker", "LLMReranker"]

_ASK = (
    "Does the passage answer the question? Say Yes or No.\n\nQuestion: {question}\n\nPassage: {passage}\n\n"
    "Does the passage answer the question? Say Yes or No."
)


class CrossEncoderReranker:
    """A cross-encoder of sentence-transformers (Nogueira and Cho 2019).

    Args:
        model: a directory, or a hub id where there is a network.

    Raises:
        UserError: there is no such model.
    """

    def __init__(self, model: str) -> None:
        library = needs("sentence_transformers", "sentence-transformers", model, extra="rag")
        try:
            self._model: Any = library.CrossEncoder(model, device="cpu", trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise UserError(f"no cross-encoder: {str(error).splitlines()[0]}", where=model) from error

    def scores(self, question: str, passages: Sequence[str]) -> list[float]:
        """See `Reranker`."""
        return [float(score) for score in self._model.predict([(question, passage) for passage in passages])]


class LLMReranker:
    """A chat model that is asked of every passage whether it answers the question; how sure it is, is the score."""

    def __init__(self, model: Answerer) -> None:
        self._model = model

    def scores(self, question: str, passages: Sequence[str]) -> list[float]:
        """See `Reranker`: the probability of a yes among yes and no."""
        return [self._yes(question, passage) for passage in passages]

    def _yes(self, question: str, passage: str) -> float:
        asked = [{"role": "user", "content": _ASK.format(question=question, passage=passage)}]
        likely = self._model.first_words(asked)
        yes, no = (_mass(likely, word) for word in ("yes", "no"))
        return yes / (yes + no) if yes + no else 0.5


def _mass(likely: dict[str, float], word: str) -> float:
    """The probability of a word, however it is written."""
    return sum(math.exp(value) for token, value in likely.items() if token.strip().lower() == word)
