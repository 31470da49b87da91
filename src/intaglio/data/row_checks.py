"""What can be wrong with one row of fine-tuning data, seen in its text alone: (problem, in words) for each."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise

from intaglio.data.formats import Sample
from intaglio.data.turns import text_of
from intaglio.text.chat_templates import WELL_KNOWN_TOKENS
from intaglio.text.messages import Message

__all__ = [
    "Found",
    "all_text",
    "check_answers",
    "check_last_word",
    "check_special_tokens",
    "check_turns",
    "contents",
    "merged",
]

Found = tuple[str, str]
"""The problem's name, and what is wrong in this row."""

_ROLES = ("system", "developer", "user", "assistant", "tool")


def contents(sample: Sample) -> list[tuple[str, str]]:
    """(name, text) of each part of the row that its author wrote."""
    if sample.kind == "chat":
        return [(f"messages[{i}]", text_of(message)) for i, message in enumerate(sample.messages)]
    parts = {"text": sample.text, "prompt": sample.prompt, "completion": sample.completion}
    return [(name, part) for name, part in parts.items() if isinstance(part, str)]


def all_text(sample: Sample) -> str:
    """All the row says."""
    return "\n".join(text for _, text in contents(sample))


def merged(found: Mapping[str, Sequence[Found]]) -> Iterator[Found]:
    """What was found in the parts of a row, once where it is in all of them; else with the name of the part."""
    parts = list(found.values())
    for name, each in found.items():
        for problem, what in each:
            if not all((problem, what) in part for part in parts):
                yield problem, f"{name}: {what}"
            elif each is parts[0]:
                yield problem, what


def check_answers(parts: Mapping[str, Sample]) -> Iterator[Found]:
    """Answers to be compared that are the same, or that answer nothing."""
    for (one, first), (other, second) in combinations(parts.items(), 2):
        if first.completion == second.completion:
            yield "same answer", f"{one} and {other} say the same"
    if any(isinstance(sample.prompt, str) and not sample.prompt.strip() for sample in parts.values()):
        yield "empty", "prompt is empty"


def check_last_word(sample: Sample) -> Iterator[Found]:
    """Chats that do not end with an answer."""
    roles = [str(message["role"]) for message in sample.messages]
    if sample.kind == "chat" and "assistant" not in roles:
        yield "role order", "the assistant says nothing"
    elif sample.kind == "chat" and roles[-1] != "assistant":
        yield "role order", f"the last word is the {roles[-1]}'s, which teaches nothing"


def check_turns(sample: Sample) -> Iterator[Found]:
    """Roles in a strange order, turns that are empty or said twice."""
    if sample.kind == "chat":
        yield from _check_roles(sample.messages)
        yield from _check_repeats(sample.messages)
    for name, text in contents(sample):
        if not text.strip() and name != "prompt" and not _calls(sample, name):
            yield "empty", f"{name} is empty"


def check_special_tokens(sample: Sample, special: frozenset[str]) -> Iterator[Found]:
    """Special tokens written in the text, where the template or the tokenizer would write them.

    Args:
        sample: the row.
        special: the tokenizer's own; well-known ones are looked for besides.
    """
    for name, text in contents(sample):
        # a text may well be full of HTML; in a chat every angle counts
        known = special if sample.kind == "text" else special | WELL_KNOWN_TOKENS
        written = sorted(token for token in known if token in text)
        if written:
            yield "special token", f"{name} has {', '.join(written)} written in it"


def _calls(sample: Sample, name: str) -> bool:
    """Whether `name` is a message that calls a function, and so needs no words."""
    return name.startswith("messages[") and bool(sample.messages[int(name[9:-1])].get("tool_calls"))


def _check_roles(messages: Sequence[Message]) -> Iterator[Found]:
    roles = [str(message["role"]) for message in messages]
    for index, role in enumerate(roles):
        if role not in _ROLES:
            yield "role order", f"messages[{index}] is from {role!r}"
        if role in ("system", "developer") and index > 0:
            yield "role order", f"messages[{index}] is from the {role}, after the beginning"
    spoken = [(index, role) for index, role in enumerate(roles) if role not in ("system", "developer")]
    if spoken and spoken[0][1] != "user":
        yield "role order", f"the {spoken[0][1]} begins"
    for (_, before), (index, role) in pairwise(spoken):
        if before == role and role in ("user", "assistant"):
            yield "role order", f"messages[{index}] is from the {role} again"
        if role == "tool" and before not in ("assistant", "tool"):
            yield "role order", f"messages[{index}] is from a tool that nobody called"
        if before == "tool" and role == "user":
            yield "role order", f"messages[{index}] is from the user, a tool's result unanswered"


def _check_repeats(messages: Sequence[Message]) -> Iterator[Found]:
    said: dict[tuple[str, str], int] = {}
    for index, message in enumerate(messages):
        text = text_of(message).strip()
        if index and text and text == text_of(messages[index - 1]).strip():
            yield "repeated turn", f"messages[{index}] says what messages[{index - 1}] says"
        elif text and message["role"] == "user" and (message["role"], text) in said:
            yield "repeated turn", f"messages[{index}] says what messages[{said[message['role'], text]}] says"
        said.setdefault((message["role"], text), index)
