"""`/v1/completions`: what is asked and what is answered."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from intaglio.serving.protocol.common import Answer, Problem, Prompts, Usage, several
from intaglio.serving.protocol.sampling import Logprobs, SamplingBody

__all__ = ["Completion", "CompletionBody", "CompletionChoice", "CompletionLogprobs"]


class CompletionBody(SamplingBody):
    """Prompts to continue.

    Attributes:
        prompt: a text, its token ids, or a list of either.
        max_tokens: tokens made at most for each choice; 0 with `echo`, to have the prompt looked at alone.
        echo: whether the text begins with the prompt, and `logprobs` with the prompt's.
        logprobs: of how many of the likeliest tokens the log-probabilities are told, beside the chosen one's.
        add_special_tokens: whether a prompt's text gets what the tokenizer adds around it (a BOS, say).
    """

    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] = 16
    echo: bool = False
    logprobs: Logprobs | None = None
    add_special_tokens: bool = True
    suffix: str | None = None
    best_of: int | None = None

    @model_validator(mode="after")
    def _is_supported(self) -> "CompletionBody":
        if self.max_tokens == 0 and not self.echo:
            raise Problem("must be at least 1 without echo", "max_tokens")
        if self.suffix:
            raise Problem("text cannot be put before a suffix", "suffix")
        if self.best_of not in (None, self.n):
            raise Problem("must be n: no more choices are made than are returned", "best_of")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, one or several."""
        return several(self.prompt)


class CompletionLogprobs(Answer):
    """One entry a token, those of the prompt first where it is echoed; of its first token nothing is known.

    `tokens` put together are the text, and `text_offset` is where in it each begins.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Answer):
    """One continuation, or what a chunk adds to it; prompt i of n choices has the indices from i * n on."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class Completion(Answer):
    """The continuations, or one event of a stream of them."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str | None
    usage: Usage | None = None
