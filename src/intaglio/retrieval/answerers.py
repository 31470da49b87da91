"""What writes the answers: a chat model, here in this process; `remote` has the one behind a URL."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from intaglio.text.chat import render_chat
from intaglio.text.messages import Message

if TYPE_CHECKING:
    from intaglio.engine.llm import LLM

__all__ = ["LIKELIEST", "Answerer", "LocalAnswerer"]

LIKELIEST = 20
"""First tokens that are told: the most that OpenAI's protocol knows."""


class Answerer(Protocol):
    """A chat model."""

    @property
    def context(self) -> int | None:
        """Tokens of prompt and answer together at most; None where nobody says."""

    def count(self, messages: Sequence[Message]) -> int:
        """Tokens of the prompt that these messages become: the model's own, the template's included."""

    def stream(self, messages: Sequence[Message], max_tokens: int) -> Iterator[str]:
        """The answer in pieces, as they come; the likeliest one."""

    def first_words(self, messages: Sequence[Message]) -> dict[str, float]:
        """The likeliest first tokens of the answer, with their log-probabilities."""


@dataclass
class LocalAnswerer:
    """A model in this process."""

    llm: "LLM"

    @property
    def context(self) -> int | None:
        """See `Answerer`."""
        return self.llm.engine.max_model_len

    def count(self, messages: Sequence[Message]) -> int:
        """See `Answerer`."""
        return len(self._prompt(messages))

    def stream(self, messages: Sequence[Message], max_tokens: int) -> Iterator[str]:
        """See `Answerer`."""
        return self.llm.chat(messages, self.llm.recommended(temperature=0.0, num_beams=1, max_tokens=max_tokens))

    def first_words(self, messages: Sequence[Message]) -> dict[str, float]:
        """See `Answerer`."""
        params = self.llm.recommended(temperature=0.0, num_beams=1, max_tokens=1, logprobs=LIKELIEST)
        (made,) = self.llm.complete([self._prompt(messages)], params)
        assert made.logprobs is not None
        return {self.llm.tokenizer.decode([token]): value for token, value in made.logprobs[0].top}

    def _prompt(self, messages: Sequence[Message]) -> list[int]:
        return render_chat(self.llm.tokenizer, messages, add_generation_prompt=True).ids
