"""What answers while a task is measured: the model as it is, or with what a road has trained."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from intaglio.advice.prompts import Messages
from intaglio.engine.llm import LLM
from intaglio.text.chat import render_chat

__all__ = ["LocalSpeaker", "Reply", "Speaker"]

_TOGETHER = 16


@dataclass(frozen=True)
class Reply:
    """One answer.

    Attributes:
        text: as generated.
        prompt_tokens, answer_tokens: read and made.
    """

    text: str
    prompt_tokens: int
    answer_tokens: int


class Speaker(Protocol):
    """A chat model."""

    def count(self, text: str) -> int:
        """Tokens of a text."""

    def answer(self, asked: Sequence[Messages]) -> list[Reply]:
        """The likeliest answers, made together."""


class LocalSpeaker:
    """A model in this process; see `Speaker`.

    Args:
        llm: the model.
        max_tokens: of an answer.
        say: told how far it is, where many are to be answered.
    """

    def __init__(self, llm: LLM, max_tokens: int, say: Callable[[str], None] = lambda line: None) -> None:
        self._llm, self._say = llm, say
        self._params = llm.recommended(temperature=0.0, max_tokens=max_tokens)

    def count(self, text: str) -> int:
        """See `Speaker`."""
        return len(self._llm.tokenizer.encode(text))

    def answer(self, asked: Sequence[Messages]) -> list[Reply]:
        """See `Speaker`."""
        prompts = [render_chat(self._llm.tokenizer, one, add_generation_prompt=True).ids for one in asked]
        replies: list[Reply] = []
        for start in range(0, len(prompts), _TOGETHER):
            some = self._llm.complete(prompts[start : start + _TOGETHER], self._params)
            replies += [Reply(made.text, made.prompt_tokens, len(made.token_ids)) for made in some]
            if len(prompts) > _TOGETHER:
                self._say(f"{len(replies)} of {len(prompts)} answered")
        return replies
