"""The sampling fields that chat and completions share, under OpenAI's names and, beyond those, vLLM's."""

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, model_validator
from pydantic_core import from_json

from intaglio.engine.sampling_params import Bias, Penalty, Repetition, Structured
from intaglio.serving.protocol.common import Body, Listed, Problem, StreamOptions, TokenIds

__all__ = ["JsonSchema", "Logprobs", "ResponseFormat", "SamplingBody", "schema_text"]

_MOST_STOP_STRINGS = 32  # lm-eval sends more than OpenAI's 4
_MOST_BIASES = 1024
Logprobs = Annotated[int, Field(ge=0, le=20)]
_Stop = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
_Word = Annotated[str, StringConstraints(pattern=r"\S", max_length=1000)]


def schema_text(schema: dict[str, Any] | str) -> str:
    """A schema as JSON, in which every number is one that JSON has.

    Raises:
        Problem: it is not JSON, or has a number too large for it.
    """
    try:
        return json.dumps(from_json(schema) if isinstance(schema, str) else schema, allow_nan=False)
    except ValueError as error:
        raise Problem("the schema is not JSON", "schema") from error


def _few(biases: Any) -> Any:
    if isinstance(biases, dict) and len(biases) > _MOST_BIASES:
        raise ValueError(f"at most {_MOST_BIASES} tokens can have one")
    return biases


_SAME_NAMES = (
    *("n", "temperature", "top_p", "top_k", "min_p", "seed", "logit_bias", "bad_words", "allowed_token_ids"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "stop", "stop_token_ids", "min_tokens"),
    *("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "prompt_logprobs"),
)


class JsonSchema(Body):
    """A schema that the answer must fit; `strict` changes nothing, since every schema is kept to."""

    name: str
    json_schema: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Body):
    """What kind of text the answer is."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_where_named(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise Problem("json_schema goes with the type json_schema, and with no other", "json_schema")
        return self

    def structured(self) -> Structured | None:
        """The constraint on the sampler, if it is one."""
        if self.json_schema is not None:
            return Structured(kind="json_schema", value=schema_text(self.json_schema.json_schema))
        return Structured(kind="json_object", value="") if self.type == "json_object" else None


class StructuredOutputs(Body):
    """The shape of the answer, as vLLM's clients give it: one of a JSON schema, a regular expression and a grammar."""

    json_schema: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    regex: Annotated[str, Field(min_length=1)] | None = None
    grammar: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> "StructuredOutputs":
        if [self.json_schema, self.regex, self.grammar].count(None) != 2:
            raise Problem("exactly one of json, regex and grammar is expected", "json")
        return self

    def structured(self) -> Structured:
        """The constraint on the sampler."""
        if self.regex is not None:
            return Structured(kind="regex", value=self.regex)
        if self.grammar is not None:
            return Structured(kind="grammar", value=self.grammar)
        return Structured(kind="json_schema", value=schema_text(self.json_schema or {}))


class SamplingBody(Body):
    """How an answer is sampled and ended.

    Attributes:
        return_token_ids: whether the ids of prompt and answer are told.
        truncate_prompt_tokens: the prompt's last tokens that are kept; -1 for as many as the model reads.
        priority: of waiting requests the lowest number goes first, where the server says so.
        The others are as in `SamplingParams`.
    """

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1)] = 1
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Repetition, Field(le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[int, Bias], BeforeValidator(_few)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: _Stop | Annotated[Listed[_Stop], Field(max_length=_MOST_STOP_STRINGS)] | None = None
    stop_token_ids: Annotated[TokenIds, Field(max_length=128)] | None = None
    bad_words: Annotated[Listed[_Word], Field(max_length=128)] | None = None
    allowed_token_ids: Annotated[TokenIds, Field(min_length=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    prompt_logprobs: Logprobs | None = None
    return_token_ids: bool = False
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0

    @model_validator(mode="after")
    def _makes_sense(self) -> "SamplingBody":
        if self.stream_options is not None and not self.stream:
            raise Problem("stream_options go with stream: true", "stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise Problem("prompt_logprobs do not go with stream: true", "prompt_logprobs")
        if self.structured_outputs and self.response_format and self.response_format.type != "text":
            raise Problem("response_format and structured_outputs are two constraints on one answer", "response_format")
        return self

    @property
    def include_usage(self) -> bool:
        """Whether a last chunk has the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        """Whether each chunk has it."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    def structured(self) -> Structured | None:
        """The constraint on the answer's text, if there is one."""
        fixed = self.structured_outputs or self.response_format
        return None if fixed is None else fixed.structured()

    def sampling_fields(self) -> dict[str, Any]:
        """The fields of `SamplingParams` that the request sets under the same names."""
        return {name: getattr(self, name) for name in _SAME_NAMES if name in self.model_fields_set}
