"""What people preferred, read from rows: pairs, rankings, single judgements, and prompts alone.

| format | keys | read by |
|---|---|---|
| preference | `chosen`, `rejected`, `prompt`?, `margin`?, `weight`?, `tools`? | `preferences_of` |
| ranked | `prompt`, `answers` (best first; or by `scores`?, highest first, or `ranks`?), `tools`? | the same |
| unpaired | `prompt`, `completion`, `label` (true: wanted), `tools`? | `judged_of` |
| prompt | `prompt`, `tools`?, anything else | `prompt_of` |

Prompt and sides are texts or lists of messages. A text beside a prompt of messages is an answer of the assistant; a
prompt that is a text, beside sides that are messages, is what the user asked, and may be said in them again.

Without a prompt, it is what both sides begin with: their longest common beginning, of turns or of characters. A space
at the border of texts goes with the sides, as tokenizers would have it.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import comb
from typing import Any, Final

from intaglio.data.fields import blamed_on, number_at, read_list, read_string, tools_of, truth_at, turns_of
from intaglio.data.readers import Row
from intaglio.data.turns import flagged_messages, text_of, without_flag
from intaglio.errors import UserError
from intaglio.text.messages import Message

__all__ = [
    "Judged",
    "Preference",
    "Prompt",
    "Said",
    "Tools",
    "answers_of",
    "common_length",
    "judged_of",
    "preferences_of",
    "prompt_of",
    "words_of",
]

Said = str | tuple[Message, ...]
"""A text, or messages."""

_OTHER_PROMPTS: Final = ("question", "instruction", "query", "input")
"""What other data sets call a prompt; without its own name it would be lost and the answers stand alone."""

Tools = tuple[Mapping[str, Any], ...] | None


@dataclass(frozen=True)
class Preference:
    """Two answers to a prompt, all three texts or all three messages.

    Attributes:
        where: the place of the row.
        prompt: what both answer; may be empty.
        chosen: the better answer.
        rejected: the worse one.
        tools: JSON schemas of functions the assistant may call.
        margin: by how much the one is better, in the units of a reward; None: nobody said.
        weight: of this pair in a mean over pairs; all pairs of a ranking of K answers that has no ties sum to 1.
    """

    where: str
    prompt: Said
    chosen: Said
    rejected: Said
    tools: Tools = None
    margin: float | None = None
    weight: float = 1.0


@dataclass(frozen=True)
class Judged:
    """One answer to a prompt, and whether it was wanted."""

    where: str
    prompt: Said
    completion: Said
    label: bool
    tools: Tools = None


@dataclass(frozen=True)
class Prompt:
    """A prompt, and whatever else its row holds (the right answer, say), by key."""

    where: str
    prompt: Said
    tools: Tools = None
    columns: Mapping[str, Any] = field(default_factory=dict)


def preferences_of(row: Row) -> list[Preference]:
    """The pair of the row, or all pairs of its ranking.

    Of K ranked answers each pair weighs 1 / C(K, 2), so that a prompt counts once however many answers it has (Ouyang
    et al. 2022, section 3.5, equation 1). Answers of one rank make no pair.

    Raises:
        UserError: a row of another format, or a key that is not what the format wants; names the row and the key.
    """
    value = _mapping(row)
    with blamed_on(row.where):
        if value.get("chosen") is not None or value.get("rejected") is not None:
            return [_pair(value, row.where)]
        if value.get("answers") is not None:
            return _ranking(value, row.where)
        raise UserError(
            f"compares nothing (keys: {', '.join(value)})", mend="it takes chosen and rejected, or prompt and answers"
        )


def judged_of(row: Row) -> Judged:
    """The answer of the row, and its label.

    Raises:
        UserError: as `preferences_of`.
    """
    value = _mapping(row)
    with blamed_on(row.where):
        prompt, (completion,) = _answered(value, {"completion": value.get("completion")})
        label = value.get("label")
        truth = bool(label) if label in (0, 1) else truth_at(label)
        if truth is None:
            raise UserError(
                f"is {label!r}, not true or false" if label is not None else "is missing",
                where="label",
                mend="true for an answer that is wanted, false for one that is not",
            )
        return Judged(row.where, prompt, completion, truth, tools_of(value))


def prompt_of(row: Row) -> Prompt:
    """The prompt of a row of any format that has one: of a chat all that stands before its last answer.

    Raises:
        UserError: it has none, or one that is malformed.
    """
    value = _mapping(row)
    with blamed_on(row.where):
        prompt, used = _prompt_alone(value)
        columns = {key: column for key, column in value.items() if key not in (used, "tools")}
        return Prompt(row.where, prompt, tools_of(value), columns)


def answers_of(row: Row) -> tuple[Said, dict[str, Said]]:
    """The prompt of a row and its answers by their keys, in no order of merit; a prompt alone has none.

    Raises:
        UserError: as `preferences_of`.
    """
    value = _mapping(row)
    with blamed_on(row.where):
        sides = _sides(value)
        if not sides:
            return _prompt_alone(value)[0], {}
        prompt, said = _answered(value, sides)
        return prompt, dict(zip(sides, said, strict=True))


def words_of(said: Said) -> str:
    """All that is said, a line for each message."""
    return said if isinstance(said, str) else "\n".join(map(text_of, said))


def _sides(value: Mapping[str, Any]) -> dict[str, Any]:
    """What stands where answers are, by key."""
    if value.get("chosen") is not None or value.get("rejected") is not None:
        return {key: value.get(key) for key in ("chosen", "rejected")}
    if value.get("answers") is not None:
        return {f"answers[{index}]": answer for index, answer in enumerate(read_list(value, "answers"))}
    return {"completion": value["completion"]} if value.get("completion") is not None else {}


def _mapping(row: Row) -> Mapping[str, Any]:
    if isinstance(row.value, str):
        raise UserError("a document has no prompt", where=row.where, mend="a row with the key prompt is wanted")
    return row.value


def _pair(value: Mapping[str, Any], where: str) -> Preference:
    prompt, (chosen, rejected) = _answered(value, _sides(value))
    margin, weight = (None if value.get(key) is None else number_at(value[key], key) for key in ("margin", "weight"))
    if weight is not None and weight <= 0:
        raise UserError(f"is {weight:g}", where="weight", mend="leave the row out if it is to count for nothing")
    return Preference(where, prompt, chosen, rejected, tools_of(value), margin, 1.0 if weight is None else weight)


def _answered(value: Mapping[str, Any], sides: Mapping[str, Any]) -> tuple[Said, list[Said]]:
    """Prompt and sides, all texts or all messages."""
    said = [_said(side, key) for key, side in sides.items()]
    given = None if value.get("prompt") is None else _said(value["prompt"], "prompt")
    texts = [side for side in said if isinstance(side, str)]
    turns = [side for side in said if not isinstance(side, str)]
    if texts and turns:
        raise UserError("one is a list of messages, the other is not", where=" and ".join(sides))
    if given is None and len(said) == 1:
        raise UserError("is missing", where="prompt")
    if texts:
        return _answered_in_texts(value, given, texts)
    return _answered_in_turns(given, turns)


def _answered_in_texts(value: Mapping[str, Any], given: Said | None, sides: list[str]) -> tuple[Said, list[Said]]:
    if isinstance(given, tuple):
        return given, [({"role": "assistant", "content": side},) for side in sides]
    if given is not None:
        return given, list(sides)
    other = next((key for key in _OTHER_PROMPTS if value.get(key) is not None), None)
    if other is not None:
        raise UserError("is missing", where="prompt", mend=f"rename {other!r} if that is it")
    border = common_length(sides)
    border -= sides[0][:border].endswith(" ")
    return sides[0][:border], [side[border:] for side in sides]


def _answered_in_turns(given: Said | None, sides: list[tuple[Message, ...]]) -> tuple[Said, list[Said]]:
    if isinstance(given, tuple):
        return given, list(sides)
    border = common_length(sides) if len(sides) > 1 else len(sides[0]) - 1
    before = sides[0][:border]
    if given is not None and not before:
        return ({"role": "user", "content": given},), list(sides)
    if not before:
        raise UserError("is missing", where="prompt", mend="the sides have no turn in common that could be it")
    if given is not None and given.strip() not in words_of(before):
        raise UserError("is not what the messages begin with", where="prompt", mend="leave it out, or ask it there")
    return before, [side[border:] for side in sides]


def common_length(sequences: Sequence[Sequence[Any]]) -> int:
    """How many items all of them begin with."""
    first = sequences[0]
    lengths = range(1, min(map(len, sequences)) + 1)
    return bisect_left(lengths, True, key=lambda n: any(one[:n] != first[:n] for one in sequences[1:]))


def _said(value: Any, key: str) -> Said:
    turns = turns_of(value)
    if turns is None:
        return read_string({key: value}, key)
    messages = flagged_messages(turns, key)
    unlearned = [index for index, message in enumerate(messages) if not message.get("train", True)]
    if unlearned and key != "prompt":
        what = "says train: false, but an answer that was compared counts whole"
        raise UserError(what, where=f"{key}[{unlearned[0]}]")
    return tuple(map(without_flag, messages))


def _ranking(value: Mapping[str, Any], where: str) -> list[Preference]:
    answers = _sides(value)
    if len(answers) < 2:
        raise UserError(f"has {len(answers)} answers, and a ranking takes two or more", where="answers")
    if value.get("prompt") is None:
        raise UserError("is missing", where="prompt")
    prompt, said = _answered(value, answers)
    places, tools, weight = _places(value, len(answers)), tools_of(value), 1 / comb(len(answers), 2)
    order = sorted(range(len(answers)), key=lambda index: places[index])
    return [
        Preference(where, prompt, said[better], said[worse], tools, weight=weight)
        for better, worse in combinations(order, 2)
        if places[better] < places[worse]
    ]


def _places(value: Mapping[str, Any], count: int) -> list[float]:
    """For each answer a number that is lower the better it is."""
    given = [key for key in ("scores", "ranks") if value.get(key) is not None]
    if len(given) == 2:
        raise UserError("says the order twice", where="scores and ranks", mend="leave one of them out")
    for key in given:
        numbers = [number_at(number, f"{key}[{place}]") for place, number in enumerate(read_list(value, key))]
        if len(numbers) != count:
            raise UserError(f"has {len(numbers)} entries where answers has {count}", where=key)
        return [-number for number in numbers] if key == "scores" else numbers
    return list(map(float, range(count)))


def _prompt_alone(value: Mapping[str, Any]) -> tuple[Said, str]:
    """The prompt, and the key it came from."""
    sides = _sides(value)
    if value.get("prompt") is not None and any(turns_of(side) is not None for side in sides.values()):
        return _answered(value, sides)[0], "prompt"  # a text beside messages is one of them
    if value.get("prompt") is not None:
        return _said(value["prompt"], "prompt"), "prompt"
    if value.get("messages") is not None:
        return _before_last_answer(flagged_messages(read_list(value, "messages"), "messages")), "messages"
    if value.get("chosen") is not None:
        return _pair(value, "").prompt, "prompt"
    raise UserError(f"has no prompt (keys: {', '.join(value)})", mend="a row with the key prompt is wanted")


def _before_last_answer(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    end = answers[-1] if answers else len(messages)
    if not end:
        raise UserError("begins with its only answer: nothing is asked", where="messages")
    return tuple(map(without_flag, messages[:end]))
