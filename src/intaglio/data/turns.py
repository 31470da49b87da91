"""The messages of training data: ShareGPT's names for ours, and the flags that keep an answer from being learned."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from intaglio.errors import UserError, nearest
from intaglio.text.messages import Message, check_messages

__all__ = ["SHAREGPT_ROLES", "flagged_messages", "messages_of_sharegpt", "text_of", "without_flag"]

SHAREGPT_ROLES: Final = {
    "human": "user",
    "gpt": "assistant",
    "system": "system",
    "observation": "tool",
    "function_call": "assistant",
}
"""ShareGPT's `from` to our `role`, the name we write first."""

_OTHER_NAMES: Final = {"user": "user", "assistant": "assistant", "chatgpt": "assistant", "tool": "tool"}


def flagged_messages(messages: Sequence[Any], where: str) -> tuple[Message, ...]:
    """Messages that were checked, without empty keys, with `train: False` where an answer is not to be learned.

    Raises:
        UserError: malformed, or flags that are none; names `where`, the index and the key.
    """
    given = [_without_gaps(message) if isinstance(message, Mapping) else message for message in messages]
    try:
        check_messages(given)
    except UserError as error:
        place = where + error.where.removeprefix("messages")
        raise UserError(error.what, where=place, mend=error.mend) from error
    return tuple(_one_flag(message, f"{where}[{index}]") for index, message in enumerate(given))


def without_flag(message: Message) -> dict[str, Any]:
    """The message as a template should see it."""
    return {key: value for key, value in message.items() if key != "train"}


def text_of(message: Message) -> str:
    """What the message says, its parts put together."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def messages_of_sharegpt(turns: Sequence[Any], where: str) -> list[dict[str, Any]]:
    """ShareGPT's turns as messages; a `function_call` becomes a message with `tool_calls`.

    Raises:
        UserError: a turn without `from` or `value`, or from nobody we know.
    """
    return [_message_of(turn, f"{where}[{index}]") for index, turn in enumerate(turns)]


def _message_of(turn: Any, where: str) -> dict[str, Any]:
    if not isinstance(turn, Mapping) or not isinstance(turn.get("value"), str):
        raise UserError("is not an object with from and a text as value", where=where)
    speaker = turn.get("from")
    roles = {**SHAREGPT_ROLES, **_OTHER_NAMES}
    if speaker not in roles:
        raise UserError(f"is {speaker!r}", where=f"{where}.from", mend=nearest(str(speaker), roles))
    more = {key: value for key, value in turn.items() if key not in ("from", "value")}
    if speaker == "function_call":
        return {"role": "assistant", "tool_calls": _calls(turn["value"], f"{where}.value"), **more}
    return {"role": roles[speaker], "content": turn["value"], **more}


def _calls(value: str, where: str) -> list[dict[str, Any]]:
    try:
        calls = json.loads(value)
    except ValueError as error:
        raise UserError("is not the JSON of a function call", where=where) from error
    calls = calls if isinstance(calls, list) else [calls]
    if not all(isinstance(call, Mapping) and isinstance(call.get("name"), str) for call in calls):
        raise UserError("names no function", where=where)
    return [{"type": "function", "function": dict(call)} for call in calls]


def _without_gaps(message: Mapping[str, Any]) -> dict[str, Any]:
    """Parquet fills the keys that other messages have with nothing."""
    return {key: value for key, value in message.items() if value is not None}


def _one_flag(message: Mapping[str, Any], where: str) -> Message:
    if "train" not in message and "weight" not in message:
        return message
    flags = {key: message[key] for key in ("train", "weight") if key in message}
    for key, flag in flags.items():
        if flag not in (0, 1):
            raise UserError(
                f"is {flag!r}, not {'true or false' if key == 'train' else '0 or 1'}", where=f"{where}.{key}"
            )
    wanted = all(flags.values())
    if wanted and message["role"] != "assistant":
        what = f"asks to learn what the {message['role']} wrote"
        raise UserError(what, where=f"{where}.{next(iter(flags))}", mend="only an assistant's answer is learned")
    rest = {key: value for key, value in message.items() if key not in flags}
    return rest if wanted else {**rest, "train": False}
