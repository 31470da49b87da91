"""A chat model that says what a test told it to, so that answers from documents can be tested without a model."""

from collections.abc import Iterator, Sequence

from intaglio.text.messages import Message

__all__ = ["Scripted"]


class Scripted:
    """An `Answerer` whose tokens are characters; it is sure that a passage about a vet answers every question.

    Args:
        pieces: what it answers.
        context: characters that it reads.
    """

    def __init__(self, *pieces: str, context: int | None = None) -> None:
        self.pieces, self.context = pieces, context
        self.asked: list[Sequence[Message]] = []

    def count(self, messages: Sequence[Message]) -> int:
        """See `Answerer`."""
        return sum(len(message["content"]) for message in messages)

    def stream(self, messages: Sequence[Message], max_tokens: int) -> Iterator[str]:
        """See `Answerer`."""
        self.asked.append(messages)
        yield from self.pieces

    def first_words(self, messages: Sequence[Message]) -> dict[str, float]:
        """See `Answerer`."""
        self.asked.append(messages)
        content = messages[-1]["content"]
        return {" Yes": -0.1, "No": -3.0} if "vet" in content.partition("Passage")[2] else {"no": -0.1, "I": -2.0}
