"""What one user asks: a prompt, or several turns, each of which has to wait for the answer to the one before."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from intaglio.evaluation.load.latency import Sample
from intaglio.evaluation.load.target import Prompt

__all__ = ["Conversation", "Send", "Turn", "hold", "turns_of"]

Send = Callable[[Prompt, int, float | None], Awaitable[Sample]]
"""Sends a prompt for so many tokens of answer, due then."""


@dataclass(frozen=True)
class Turn:
    """What is said at once.

    Attributes:
        said: of a conversation's only turn any prompt; of several, a text or messages.
        max_tokens: of the answer.
    """

    said: Prompt
    max_tokens: int


Conversation = tuple[Turn, ...]


async def hold(send: Send, conversation: Conversation, due: float | None = None) -> list[Sample]:
    """A conversation to its end: each turn is asked with all turns before it and the model's own answers to them.

    Turns behind a failed one are not asked. Only the first has been due at a moment.
    """
    if len(conversation) == 1:
        return [await send(conversation[0].said, conversation[0].max_tokens, due)]
    history: list[dict[str, Any]] = []
    samples: list[Sample] = []
    for place, turn in enumerate(conversation):
        history += _messages(turn.said)
        sample = await send(list(history), turn.max_tokens, None if place else due)
        sample.turn = place
        samples.append(sample)
        if sample.error:
            break
        history.append({"role": "assistant", "content": sample.text})
    return samples


def _messages(said: Prompt) -> list[dict[str, Any]]:
    if isinstance(said, str):
        return [{"role": "user", "content": said}]
    assert all(isinstance(message, dict) for message in said), "turns have no token ids"
    return said  # type: ignore[return-value]


def turns_of(messages: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """What others than the assistant say, a list for each of its answers; those answers themselves are left out."""
    turns: list[list[dict[str, Any]]] = [[]]
    for message in messages:
        if message.get("role") == "assistant":
            turns.append([])
        else:
            turns[-1].append(message)
    return [turn for turn in turns if turn]
