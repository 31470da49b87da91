"""What stands in our pages: their fences, their commands, their links."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

__all__ = ["ROOT", "Fence", "Page", "blocks", "command_lines", "without_comments"]

ROOT: Final = Path(__file__).parents[1]
_OPENS: Final = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<info>[^`]*)$")
_COMMENT: Final = re.compile(r"(^|\s+)# .*$")


@dataclass(frozen=True)
class Fence:
    """A block between fences.

    Attributes:
        info: what stands behind the opening fence, as `python title="src/intaglio/parts/norm.py"`.
        body: its lines, without the fence's own indentation.
        line: of the opening fence, from 1.
    """

    info: str
    body: str
    line: int

    @property
    def language(self) -> str:
        """The first word of the info string."""
        return self.info.partition(" ")[0]

    def value(self, key: str) -> str | None:
        """The info string's `key="value"`."""
        found = re.search(rf'\b{key}="([^"]*)"', self.info)
        return found.group(1) if found else None

    @property
    def waits_for_proof(self) -> bool:
        """Whether it is too slow for `make test`."""
        return "prove" in self.info.split()[1:]

    @property
    def reason_not_to_run(self) -> str | None:
        """Why nothing here can run it."""
        _, found, reason = self.info.partition("no-run:")
        return reason.strip() if found else None


@dataclass(frozen=True)
class Page:
    """A Markdown file of the repository."""

    path: Path

    @property
    def name(self) -> str:
        """Its path from the repository's root."""
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def text(self) -> str:
        """All of it."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def fences(self) -> list[Fence]:
        """Its blocks, from top to bottom."""
        return list(_fences(self.text))

    @cached_property
    def prose(self) -> str:
        """What stands outside of fences, line by line as in the file; what is in them is empty lines."""
        lines = self.text.splitlines()
        for fence in self.fences:
            end = fence.line + fence.body.count("\n") + 1
            lines[fence.line - 1 : end] = [""] * (end - fence.line + 1)
        return "\n".join(lines)


def _fences(text: str) -> Iterator[Fence]:
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        opened = _OPENS.match(line)
        if not opened:
            continue
        body, indent = [], len(opened["indent"])
        for _, inner in lines:
            if inner.strip() == opened["ticks"]:
                break
            body.append(inner[indent:] if inner[:indent].isspace() or not indent else inner)
        else:
            raise AssertionError(f"line {number}: the fence is never closed")
        yield Fence(opened["info"].strip(), "".join(f"{one}\n" for one in body), number)


def blocks(page: str, language: str) -> list[str]:
    """The bodies of the blocks in a language."""
    return [fence.body for fence in _fences(page) if fence.language == language]


def without_comments(block: str) -> list[str]:
    """Its lines, without what follows `#`."""
    return [_COMMENT.sub("", line) for line in block.splitlines()]


def command_lines(block: str) -> list[str]:
    """The commands of a bash block: a trailing backslash continues a line, and so does an open quotation mark."""
    found, open_line = [], ""
    for line in without_comments(block.replace("\\\n", " ")):
        open_line = f"{open_line}\n{line}" if open_line else line.strip()
        if _is_closed(open_line):
            found += [open_line] if open_line else []
            open_line = ""
    assert not open_line, f"a quotation mark is never closed: {open_line}"
    return found


def _is_closed(line: str) -> bool:
    try:
        shlex.split(line)
    except ValueError:
        return False
    return True
