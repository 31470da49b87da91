"""Questions whose pages are known: written by hand in a file, or made from the index that a documentation brings."""

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intaglio.data.unpacking import needs
from intaglio.errors import UserError
from intaglio.files import read_text

if TYPE_CHECKING:
    from bs4 import Tag

__all__ = ["Question", "index_questions", "read_questions"]

_NUMBER = re.compile(r"\[\d+\]")


@dataclass(frozen=True)
class Question:
    """A question and what is right.

    Attributes:
        question: in a user's words.
        files: relative to the indexed folder; each holds the answer. Empty where the documents do not hold it.
        answers: short ones, each of them right; maybe none.
    """

    question: str
    files: tuple[str, ...]
    answers: tuple[str, ...] = ()


def read_questions(file: Path) -> list[Question]:
    """One JSON object a line: `question`, `files`, and maybe `answers`.

    Raises:
        UserError: the file cannot be read, a line is none, or there is none.
    """
    lines = enumerate(read_text(file).split("\n"), 1)
    found = [_question(line, f"{file}:{number}") for number, line in lines if line.strip()]
    if not found:
        raise UserError("there are no questions", where=str(file))
    return found


def _question(line: str, where: str) -> Question:
    try:
        row = json.loads(line)
        asked, files, answers = row["question"], row["files"], row.get("answers", [])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError("no JSON object with `question` and `files`", where=where) from error
    if not (isinstance(asked, str) and asked.strip() and _texts(files) and _texts(answers)):
        raise UserError("`question` is a text, `files` and `answers` are lists of texts", where=where)
    return Question(asked, tuple(files), tuple(answers))


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def index_questions(page: Path, count: int, seed: int = 0) -> list[Question]:
    """Questions made from the entries of an index that Sphinx has made (`genindex-all.html`): what each one is.

    The right pages are all those that the entry leads to.

    Args:
        page: the index, at the root of the documentation.
        count: of questions, drawn evenly from all entries.
        seed: of the draw.

    Raises:
        UserError: there are not so many entries.
    """
    entries = _entries(read_text(page))
    if len(entries) < count:
        raise UserError(f"{len(entries)} entries are fewer than {count}", where=str(page), mend="name Sphinx's index")
    drawn = random.Random(seed).sample(sorted(entries), count)
    return [Question(f"What is {name}?", tuple(sorted(entries[name]))) for name in drawn]


def _entries(page: str) -> dict[str, set[str]]:
    """The files that each entry leads to; an entry within another has the other's name in front."""
    soup = needs("bs4", "beautifulsoup4", "Sphinx's index", extra="rag").BeautifulSoup
    found: dict[str, set[str]] = {}
    for item in soup(page, "html.parser").select(".indextable li"):
        links = [str(link["href"]).partition("#")[0] for link in item.find_all("a", recursive=False)]
        if links:
            found.setdefault(_full_name(item), set()).update(links)
    return found


def _full_name(item: "Tag") -> str:
    """`abort() (asyncio.Barrier method)`, although its second half may stand below `abort() (in module os)`."""
    above, name = item.find_parent("li"), _name(item)
    if above is None:
        return name
    group = _name(above)
    return f"{group.partition(' (')[0] if name.startswith('(') else group} {name}"


def _name(item: "Tag") -> str:
    """An entry's own words, without the numbers of its further links and what stands within it."""
    words = [
        part.get_text()
        for part in item.children
        if getattr(part, "name", "") != "ul" and not _NUMBER.fullmatch(part.get_text())
    ]
    return " ".join("".join(words).replace(",", " ").split())
