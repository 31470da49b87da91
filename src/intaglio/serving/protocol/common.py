"""What every request and every answer has."""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = [
    "Answer",
    "Body",
    "ErrorAnswer",
    "ErrorInfo",
    "Listed",
    "Problem",
    "PromptTokensDetails",
    "Prompts",
    "StreamOptions",
    "TokenIds",
    "Usage",
    "several",
]

T = TypeVar("T")

# of a list of a million mistakes, one is enough to be told: a list of errors takes far more memory than the body
Listed = Annotated[list[T], Field(fail_fast=True)]
TokenIds = Listed[Annotated[int, Field(ge=0, lt=2**31)]]
Prompts = str | TokenIds | Listed[str] | Listed[TokenIds]
"""A text, its token ids, or a list of either."""


def several(prompts: Prompts) -> list[str | list[int]]:
    """The prompts that a field holds, be it one or a list."""
    if isinstance(prompts, str):
        return [prompts]
    listed = [prompt for prompt in prompts if not isinstance(prompt, int)]
    return listed or [[token_id for token_id in prompts if isinstance(token_id, int)]]


class Problem(ValueError):
    """A request whose fields are fine one by one and make no sense together.

    Args:
        message: what is wrong.
        param: the field that is to blame.
    """

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class Body(BaseModel):
    """A request, or an object in one: null is the same as absent, and what we do not know is ignored.

    Clients send null for each option they leave alone, and fields that only other servers understand.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


class StreamOptions(Body):
    """What a stream tells besides the answer.

    Attributes:
        include_usage: whether one last chunk, without choices, has the usage.
        continuous_usage_stats: whether each chunk has the usage so far.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Answer(BaseModel):
    """Whatever we send; only fields that were set are written."""

    model_config = ConfigDict(protected_namespaces=())

    def json_bytes(self) -> bytes:
        """As JSON in UTF-8, fields that were never set left out."""
        return self.__pydantic_serializer__.to_json(self, exclude_unset=True)


class PromptTokensDetails(Answer):
    """Of the prompt's tokens, those that the prefix cache had."""

    cached_tokens: int


class Usage(Answer):
    """Tokens read and made; those of all prompts and all choices of the request."""

    prompt_tokens: int
    completion_tokens: int = 0
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None


class ErrorInfo(Answer):
    """What went wrong; `param` names the field, `code` is for programs."""

    message: str
    type: str
    param: str | None
    code: str | int | None


class ErrorAnswer(Answer):
    """The body of every answer that is no success."""

    error: ErrorInfo
