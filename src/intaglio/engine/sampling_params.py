"""How the next token is chosen and when a sequence ends: what a user may ask for, checked."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from intaglio.errors import UserError, nearest

__all__ = ["Bias", "Penalty", "Repetition", "SamplingParams", "Structured"]


_COLDEST = 1e-5

TokenId = Annotated[int, Field(ge=0)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Repetition = Annotated[float, Field(ge=0.01, allow_inf_nan=False)]
"""Logits divided by less overflow."""


_ONLY_SEARCHED = ("length_penalty", "early_stopping")
_ONLY_SAMPLED = (
    *("n", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("bad_words", "allowed_token_ids", "structured", "seed", "logprobs", "prompt_logprobs", "min_tokens", "stop"),
    *("prompt_logprobs_from", "include_stop_str_in_output", "skip_special_tokens"),
)


class _Checked(BaseModel):
    """Values whose mistakes are the user's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **values: Any) -> None:
        """Checks the values.

        Raises:
            UserError: a value out of range or a name that does not exist; says which.
        """
        try:
            super().__init__(**values)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            if first["type"] == "extra_forbidden":
                mend = nearest(name, type(self).model_fields)
                raise UserError("there is no such sampling parameter", where=name, mend=mend) from error
            reason = first["msg"].removeprefix("Value error, ")
            given = f", not {first['input']!r}" if name else ""
            raise UserError(f"{reason}{given}", where=name or "sampling") from error


class Structured(_Checked):
    """A shape that the text must have, whatever the model would rather say (see `structured`).

    Attributes:
        kind: what `value` is.
        value: a JSON schema, a regular expression (of the whole text) or a grammar in Lark's notation; nothing for
            `json_object`, which is any JSON object.
    """

    kind: Literal["json_schema", "json_object", "regex", "grammar"]
    value: str = ""

    @model_validator(mode="after")
    def _said(self) -> Self:
        if (self.kind == "json_object") == bool(self.value):
            raise ValueError("json_object takes no value" if self.value else f"{self.kind} needs a value")
        return self


class SamplingParams(_Checked):
    """How one sequence is sampled and ended.

    Attributes:
        n: choices made for the prompt, each drawn for itself.
        temperature: divides the logits; 0, or so little that the division could overflow, takes the likeliest token.
        top_k: sample among so many likeliest tokens; 0 or -1 for all.
        top_p: sample among the likeliest tokens that together have this probability (Holtzman et al. 2020).
        min_p: sample among tokens with at least this share of the likeliest one's probability (Nguyen et al. 2024).
        repetition_penalty: divides positive and multiplies negative logits of tokens that occurred (Keskar et al.
            2019); 1 for none. The prompt's tokens count as the output's do.
        presence_penalty: taken from the logits of tokens that occurred in the output, however often; -2 to 2.
        frequency_penalty: the same for each time they occurred.
        logit_bias: added to the logits of these tokens; -100 to 100.
        bad_words: texts that are not made in the tokens that they are spelled with, alone and behind a space: where
            all but the last token have been made, the last is not.
        allowed_token_ids: the only tokens that may be made; None for all.
        structured: the shape that the text must have.
        seed: makes the sequence repeatable, whatever it is batched with; each of `n` choices draws its own.
        logprobs: how many of the likeliest tokens are told with their log-probabilities at each step, besides the one
            chosen; 0 for that one alone, None for nothing. Under the model itself, before all of the above.
        prompt_logprobs: the same for each token of the prompt.
        prompt_logprobs_from: the first token of the prompt for which they are wanted; those before it have none, and
            may come out of the prefix cache.
        max_tokens: tokens made at most; None for as many as the context holds.
        min_tokens: until so many are made, nothing but the length ends the sequence.
        stop: texts that end the sequence; not shown.
        include_stop_str_in_output: whether what ended the sequence is shown after all.
        skip_special_tokens: whether special tokens give no text.
        stop_token_ids: tokens that end it, besides the model's own EOS.
        ignore_eos: whether the model's own EOS ends nothing.
        forbidden_token_ids: tokens that are never made.
        num_beams: more than 1 for beam search, which takes the likeliest whole text that it finds (see `beam`).
        length_penalty: beam search ranks texts by log P / length^penalty.
        early_stopping: whether beam search ends with its first `num_beams` texts, though better ones may follow.
    """

    n: Annotated[int, Field(ge=1)] = 1
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Repetition = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: dict[TokenId, Bias] = {}
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: Annotated[tuple[TokenId, ...], Field(min_length=1)] | None = None
    structured: Structured | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    logprobs: Annotated[int, Field(ge=0)] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0)] | None = None
    prompt_logprobs_from: Annotated[int, Field(ge=0)] = 0
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    forbidden_token_ids: tuple[int, ...] = ()
    num_beams: Annotated[int, Field(ge=1)] = 1
    length_penalty: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    early_stopping: bool = False

    @field_validator("stop", "bad_words", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "" in value:
            raise ValueError("an empty stop string would end every sequence at once")
        return value

    @field_validator("bad_words")
    @classmethod
    def _words(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(word.strip() for word in value):
            raise ValueError("an empty bad word forbids nothing")
        return value

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens {self.min_tokens} is more than max_tokens {self.max_tokens}")
        return self

    @model_validator(mode="after")
    def _one_list(self) -> Self:
        if self.structured and self.allowed_token_ids:
            raise ValueError("allowed_token_ids has no place beside structured, which says what is allowed")
        return self

    @model_validator(mode="after")
    def _searched_or_sampled(self) -> Self:
        idle = _changed(self, _ONLY_SAMPLED if self.num_beams > 1 else _ONLY_SEARCHED)
        if idle:
            raise ValueError(f"{idle[0]} has no effect with num_beams {self.num_beams}")
        if self.num_beams > 1 and not self.greedy:
            raise ValueError("beam search draws nothing: temperature must be 0")
        return self

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature < _COLDEST


def _changed(params: SamplingParams, names: Iterable[str]) -> list[str]:
    """Those of `names` that are not at their defaults."""
    fields = SamplingParams.model_fields
    return [name for name in names if getattr(params, name) != fields[name].default]
