"""How the next token is chosen and when a sequence ends: what a user may ask for, checked."""

from collections.abc import Iterable
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from intaglio.errors import UserError, nearest

__all__ = ["SamplingParams"]


_COLDEST = 1e-5


class SamplingParams(BaseModel):
    """How one sequence is sampled and ended.

    Attributes:
        temperature: divides the logits; 0, or so little that the division could overflow, takes the likeliest token.
        top_k: sample among so many likeliest tokens; 0 or -1 for all.
        top_p: sample among the likeliest tokens that together have this probability (Holtzman et al. 2020).
        min_p: sample among tokens with at least this share of the likeliest one's probability (Nguyen et al. 2024).
        repetition_penalty: divides positive and multiplies negative logits of tokens that occurred (Keskar et al.
            2019); 1 for none.
        seed: makes the sequence repeatable, whatever it is batched with.
        max_tokens: tokens made at most; None for as many as the context holds.
        min_tokens: until so many are made, nothing but the length ends the sequence.
        stop: texts that end the sequence; not shown.
        stop_token_ids: tokens that end it, besides the model's own EOS.
        ignore_eos: whether the model's own EOS ends nothing.
        forbidden_token_ids: tokens that are never made.
        num_beams: more than 1 for beam search, which takes the likeliest whole text that it finds (see `beam`).
        length_penalty: beam search ranks texts by log P / length^penalty.
        early_stopping: whether beam search ends with its first `num_beams` texts, though better ones may follow.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    forbidden_token_ids: tuple[int, ...] = ()
    num_beams: Annotated[int, Field(ge=1)] = 1
    length_penalty: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    early_stopping: bool = False

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

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "" in value:
            raise ValueError("an empty stop string would end every sequence at once")
        return value

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens {self.min_tokens} is more than max_tokens {self.max_tokens}")
        return self

    @model_validator(mode="after")
    def _searched_or_sampled(self) -> Self:
        sampling = ("top_k", "top_p", "min_p", "repetition_penalty", "seed", "min_tokens", "stop")
        searching = ("length_penalty", "early_stopping")
        idle = _changed(self, sampling if self.num_beams > 1 else searching)
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
