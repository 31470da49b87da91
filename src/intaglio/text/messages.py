"""What a conversation must look like before a template sees it."""

from collections.abc import Mapping, Sequence
from typing import Any

from intaglio.errors import UserError

__all__ = ["Message", "check_messages"]

Message = Mapping[str, Any]
"""`role`, and `content`: a text, a list of `{"type": "text", "text": ...}`, or None beside `tool_calls`."""


def check_messages(messages: Any) -> None:
    """Refuses what is not a conversation.

    Raises:
        UserError: no messages, or one that is malformed; names its index and key.
    """
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence):
        raise UserError(f"a list of messages is expected, not {type(messages).__name__}", where="messages")
    if not messages:
        raise UserError("a conversation needs at least one message", where="messages")
    for index, message in enumerate(messages):
        _check_message(message, f"messages[{index}]")


def _check_message(message: Any, where: str) -> None:
    if not isinstance(message, Mapping):
        raise UserError(f"an object with role and content is expected, not {type(message).__name__}", where=where)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise UserError(f"is {role!r}, not a name such as user or assistant", where=f"{where}.role")
    _check_tool_calls(message.get("tool_calls"), f"{where}.tool_calls")
    _check_content(message, f"{where}.content")


def _check_content(message: Message, where: str) -> None:
    content = message.get("content")
    if isinstance(content, str) or (content is None and message.get("tool_calls")):
        return
    if content is None:
        raise UserError("is missing", where=where, mend="only a message with tool_calls may have none")
    if not isinstance(content, Sequence):
        raise UserError(f"is {type(content).__name__}, not a text or a list of text parts", where=where)
    for index, part in enumerate(content):
        if not _is_text_part(part):
            raise UserError('is not {"type": "text", "text": ...}', where=f"{where}[{index}]")


def _is_text_part(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _check_tool_calls(calls: Any, where: str) -> None:
    if calls is None:
        return
    if not isinstance(calls, Sequence) or not all(isinstance(call, Mapping) for call in calls):
        raise UserError("is not a list of objects", where=where)
    for index, call in enumerate(calls):
        function = call.get("function", call)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise UserError("names no function", where=f"{where}[{index}]")
