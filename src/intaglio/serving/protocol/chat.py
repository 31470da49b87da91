"""`/v1/chat/completions`: what is asked and what is answered."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from intaglio.retrieval.citations import Citation
from intaglio.serving.protocol.common import Answer, Body, Listed, Problem, Usage
from intaglio.serving.protocol.sampling import Logprobs, SamplingBody

__all__ = [
    "AnsweredMessage",
    "ChatBody",
    "ChatChoice",
    "ChatChunk",
    "ChatCompletion",
    "ChatLogprobs",
    "ChunkChoice",
    "Delta",
    "FunctionText",
    "LikelyToken",
    "MessageBody",
    "NamedTool",
    "TokenInfo",
    "ToolBody",
    "ToolCallAnswer",
]

Role = Literal["system", "developer", "user", "assistant", "tool"]
_Name = Annotated[str, Field(min_length=1, max_length=256)]


class TextPart(Body):
    """One part of a message's content; texts are all we read."""

    type: Literal["text"]
    text: str


class CalledFunction(Body):
    """A function the assistant called, its arguments being an object in JSON."""

    name: _Name
    arguments: str = "{}"


class CallBody(Body):
    """A call in an earlier message of the assistant."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class MessageBody(Body):
    """One message; `content` may be absent where there are `tool_calls`."""

    role: Role
    content: str | Listed[TextPart] | None = None
    name: str | None = None
    tool_calls: Listed[CallBody] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @property
    def text(self) -> str:
        """The content in one piece."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())

    @model_validator(mode="after")
    def _says_something(self) -> "MessageBody":
        if self.content is None and not self.tool_calls and self.role != "assistant":
            raise Problem("a message needs a content", "content")
        return self


class FunctionBody(Body):
    """A function the assistant may call; `parameters` is a JSON schema."""

    name: _Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(Body):
    """A tool; functions are all there are."""

    type: Literal["function"]
    function: FunctionBody


class FunctionName(Body):
    """The function that must be called."""

    name: _Name


class NamedTool(Body):
    """The tool that must be called."""

    type: Literal["function"] = "function"
    function: FunctionName


class ChatBody(SamplingBody):
    """A conversation to answer.

    Attributes:
        messages: the conversation so far.
        max_tokens, max_completion_tokens: tokens of the answer at most; the second wins.
        logprobs, top_logprobs: whether each token's log-probability is told, and of how many others beside it.
        tools, tool_choice, parallel_tool_calls: functions the assistant may, must or must not call. One that must be
            called is called once.
        add_generation_prompt: whether an answer begins.
        continue_final_message: whether the last message, the assistant's, goes on instead.
        chat_template: Jinja in place of the model's own, where the server trusts its clients.
        chat_template_kwargs: further variables for the template.
    """

    messages: Annotated[Listed[MessageBody], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool = False
    top_logprobs: Logprobs | None = None
    tools: Annotated[Listed[ToolBody], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> "ChatBody":
        if self.top_logprobs is not None and not self.logprobs:
            raise Problem("top_logprobs needs logprobs: true", "top_logprobs")
        if self.continue_final_message and self.messages[-1].role != "assistant":
            raise Problem("continue_final_message needs a last message of the assistant's", "continue_final_message")
        if self.must_call and not self.tools:
            raise Problem("no tools are given to choose from", "tool_choice")
        if isinstance(self.tool_choice, NamedTool) and not self.callable_tools:
            raise Problem("the chosen function is not among the tools", "tool_choice")
        if self.may_call and self.structured() is not None:
            raise Problem("an answer of a fixed format can call no tool: say tool_choice none", "response_format")
        return self

    @property
    def must_call(self) -> bool:
        """Whether the answer is a call and nothing else."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)

    @property
    def may_call(self) -> bool:
        """Whether the answer may be a call."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def callable_tools(self) -> list[ToolBody]:
        """The tools that may be called: all, or the named one."""
        tools = self.tools or []
        if not isinstance(self.tool_choice, NamedTool):
            return tools if self.may_call else []
        return [tool for tool in tools if tool.function.name == self.tool_choice.function.name]

    @property
    def most_tokens(self) -> int | None:
        """The limit on the answer's tokens."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class LikelyToken(Answer):
    """A token, its log-probability, and its raw bytes: characters may be split between tokens."""

    token: str
    logprob: float
    bytes: list[int]


class TokenInfo(LikelyToken):
    """A token of the answer, and the likeliest ones in its place."""

    top_logprobs: list[LikelyToken]


class ChatLogprobs(Answer):
    """One entry a token."""

    content: list[TokenInfo]


class FunctionText(Answer):
    """A called function; `arguments` is JSON as the model wrote it."""

    name: str
    arguments: str


class ToolCallAnswer(Answer):
    """A call; in streams with its place among the message's calls."""

    index: int | None = None
    id: str
    type: Literal["function"]
    function: FunctionText


class AnsweredMessage(Answer):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCallAnswer] | None = None


class ChatChoice(Answer):
    """One answer; `citations` where the server answers from documents."""

    index: int
    message: AnsweredMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    citations: list[Citation] | None = None


class ChatCompletion(Answer):
    """The answers to a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    prompt_token_ids: list[int] | None = None


class Delta(Answer):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallAnswer] | None = None


class ChunkChoice(Answer):
    """What a chunk adds to one answer; `citations` come with the `finish_reason`."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    citations: list[Citation] | None = None


class ChatChunk(Answer):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    system_fingerprint: str | None
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None
