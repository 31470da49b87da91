"""What a model is asked on each road: the question alone, behind examples, or behind passages."""

from collections.abc import Callable, Sequence

from intaglio.advice.task import Case
from intaglio.retrieval.search import Hit
from intaglio.text.messages import Message

__all__ = ["Messages", "behind_examples", "behind_passages"]

Messages = Sequence[Message]

_READ = "Use what stands above."


def behind_examples(case: Case, examples: Sequence[Case]) -> Messages:
    """The question, and before it others with their answers, as turns of the same conversation."""
    turns: list[Message] = []
    for example in examples:
        turns += [*example.messages, {"role": "assistant", "content": example.answer}]
    return [*turns, *case.messages]


def behind_passages(case: Case, hits: Sequence[Hit], count: Callable[[str], int], most: int) -> Messages:
    """The question, and before it in the same message as many passages as there is room for, the best first.

    Args:
        case: asks.
        hits: what was found.
        count: tokens of a text.
        most: tokens that the passages may have together; a first that has more is cut by words.
    """
    passages: list[str] = []
    room = most
    for hit in hits:
        words = hit.chunk.text
        if count(words) > room:
            words = "" if passages else " ".join(words.split()[: room // 2])
        if not words:
            break
        passages.append(words)
        room -= count(words)
    if not passages:
        return case.messages
    *before, last = case.messages
    return [*before, {**last, "content": "\n\n".join([*passages, _READ, last["content"]])}]
