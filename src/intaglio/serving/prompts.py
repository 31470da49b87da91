"""From what a request says to the token ids that the model reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic_core import from_json

from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.serving.errors import ApiError
from intaglio.serving.protocol.chat import CallBody, MessageBody, ToolBody
from intaglio.serving.protocol.sampling import SamplingBody
from intaglio.serving.service import Service
from intaglio.text.chat import ChatTemplate, chat_template_of, render_chat

__all__ = ["Conversation", "Job", "chat_ids", "fitted", "job", "template_for", "text_ids", "tool_schemas"]

_NOT_VARIABLES = {"self", "tokenizer", "messages", "tools", "add_generation_prompt", "template"}


@dataclass(frozen=True)
class Job:
    """One prompt for the engine to continue.

    Attributes:
        prompt_ids: the prompt.
        params: how it is continued.
        priority: see `AsyncEngine.generate`.
    """

    prompt_ids: list[int]
    params: SamplingParams
    priority: int = 0


class Conversation(Protocol):
    """What requests with messages have in common."""

    @property
    def messages(self) -> list[MessageBody] | None: ...
    @property
    def add_generation_prompt(self) -> bool: ...
    @property
    def continue_final_message(self) -> bool: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def chat_template_kwargs(self) -> dict[str, Any] | None: ...


def template_for(service: Service, body: Conversation, tools: Sequence[ToolBody]) -> ChatTemplate:
    """The template that renders a conversation.

    Raises:
        UserError: there is none, or the request may not bring its own.
    """
    own = service.template_of(body.chat_template)
    return own or chat_template_of(service.tokenizer, tool_schemas(tools))


def chat_ids(service: Service, body: Conversation, template: ChatTemplate, tools: Sequence[ToolBody]) -> list[int]:
    """The ids of a conversation, up to where the answer begins.

    A last message that is to be continued stands behind what comes before an answer, as if it had just been made.

    Raises:
        UserError, ApiError: no conversation the template can render.
    """
    variables = body.chat_template_kwargs or {}
    if not _NOT_VARIABLES.isdisjoint(variables):
        raise ApiError(400, f"may not have {', '.join(sorted(_NOT_VARIABLES))}", param="chat_template_kwargs")
    messages = [_plain(index, message) for index, message in enumerate(body.messages or ())]
    begun = messages.pop()["content"] if body.continue_final_message else None
    prompt = body.add_generation_prompt or begun is not None
    rendered = render_chat(service.tokenizer, messages, tool_schemas(tools), prompt, template, **variables)
    return rendered.ids + (service.tokenizer.encode(begun, add_special_tokens=False) if begun else [])


def tool_schemas(tools: Sequence[ToolBody]) -> list[dict[str, Any]] | None:
    """The tools as templates know them; None for none."""
    return [tool.model_dump(exclude_unset=True) for tool in tools] or None


def text_ids(service: Service, prompts: Sequence[str | list[int]], add_special: bool) -> list[list[int]]:
    """The ids of texts, and of ids the ids themselves: nothing is added to those."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    encoded = iter(service.tokenizer.encode_batch(texts, add_special_tokens=add_special))
    return [next(encoded) if isinstance(prompt, str) else prompt for prompt in prompts]


def fitted(service: Service, ids: list[int], *, keep: int | None, param: str, room: int = 1) -> list[int]:
    """A prompt that the model can read and still has `room` tokens to answer.

    Args:
        service: whose model reads it.
        ids: the prompt.
        keep: how many of its last tokens are kept; None for all, -1 for as many as the model reads.
        param: the field it came in.
        room: 0 where nothing is answered.

    Raises:
        ApiError: it is empty, too long, or has ids that the tokenizer does not know.
    """
    most = service.engine.max_model_len - room
    ids = ids[-(most if keep == -1 else keep) :] if keep else ids
    if not ids or keep == 0:
        raise ApiError(400, "there is no token in the prompt", param=param)
    if len(ids) > most:
        context = service.engine.max_model_len
        answer = " and an answer is to follow" if room else ""
        message = f"the prompt has {len(ids)} tokens{answer}; the model reads {context}"
        raise ApiError(400, message, param=param, code="context_length_exceeded")
    if max(ids) >= service.tokenizer.vocab_size:
        raise ApiError(400, f"{max(ids)} is no token: there are {service.tokenizer.vocab_size}", param=param)
    return ids


def job(service: Service, body: SamplingBody, ids: list[int], most: int | None, **more: Any) -> Job:
    """The prompt with how it is to be continued.

    Args:
        service: whose defaults hold for what the request leaves open.
        body: the request.
        ids: the prompt, which fits.
        most: tokens of the answer at most; None for as many as fit.
        more: fields of `SamplingParams` that are known better.

    Raises:
        ApiError, UserError: so many tokens do not fit; or a value that makes no sense.
    """
    context = service.engine.max_model_len
    room = context - len(ids)
    if most is not None and most > room:
        message = f"the prompt's {len(ids)} tokens and {most} of the answer are more than the {context} the model reads"
        raise ApiError(400, message, param="max_tokens", code="context_length_exceeded")
    if most is not None and (body.min_tokens or 0) > most:
        raise ApiError(400, f"min_tokens {body.min_tokens} is more than max_tokens {most}", param="min_tokens")
    unknown = max([*(body.logit_bias or ()), *(body.allowed_token_ids or ())], default=0)
    if unknown >= service.tokenizer.vocab_size:
        raise ApiError(400, f"{unknown} is no token: there are {service.tokenizer.vocab_size}", param="logit_bias")
    asked = {**service.defaults, **body.sampling_fields(), "max_tokens": room if most is None else most}
    if service.ends and not asked.get("ignore_eos"):
        asked["stop_token_ids"] = (*asked.get("stop_token_ids", ()), *sorted(service.ends))
    structured = body.structured()
    if structured is not None:
        asked["structured"] = structured
    return Job(ids, SamplingParams(**{**asked, **more}), body.priority)


def _plain(index: int, message: MessageBody) -> dict[str, Any]:
    """A message as templates know it: the content one text, arguments objects, and no developer but the system."""
    given = message.model_dump(exclude_none=True, exclude={"tool_calls"})
    role = "system" if message.role == "developer" else message.role
    calls = [_plain_call(call, f"messages[{index}].tool_calls") for call in message.tool_calls or ()]
    return {**given, "role": role, "content": message.text, **({"tool_calls": calls} if calls else {})}


def _plain_call(call: CallBody, where: str) -> dict[str, Any]:
    try:
        arguments = from_json(call.function.arguments or "{}", allow_inf_nan=False)
    except ValueError as error:
        raise UserError(f"arguments that are no JSON: {error}", where=where) from error
    if not isinstance(arguments, dict):
        raise UserError("arguments that are no JSON object", where=where)
    function = {"name": call.function.name, "arguments": arguments}
    return {**call.model_dump(exclude_none=True), "function": function}
