"""A page's commands, run one after the other in one folder as a reader would run them, most of them in this process.

A command is a line of a block ```` ```bash ````. Before it is run, names in capitals that stand for something of the
reader's own (`doc_home.PLACEHOLDERS`) are made, and it is made small (`doc_toy_sizes`). A server is started at a free
port whatever port the page names, and stops when the page ends.
"""

import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Final

import pytest

from doc_home import PLACEHOLDERS
from doc_pages import ROOT, Fence, Page, command_lines
from doc_server import forked_server
from doc_toy_sizes import more_arguments
from intaglio.cli.main import main
from intaglio.training.recipe import Recipe, load_recipe

__all__ = ["Reader"]

_OPERATORS: Final = set("|><;&")
_ADDRESS: Final = re.compile(r"http://(?:127\.0\.0\.1|localhost):(\d+)|\b(?:ADDRESS|URL)\b")
_SECONDS: Final = 120  # of a command in another process


@dataclass
class Reader:
    """Somebody who types a page's commands.

    Attributes:
        patch: of the test.
        capture: what commands print.
        whole: run commands at the size that the page says.
    """

    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]
    whole: bool = False
    _servers: dict[str, ExitStack] = field(default_factory=dict)  # by the port that the page names
    _addresses: dict[str, str] = field(default_factory=dict)
    _names: dict[str, object] = field(default_factory=lambda: {"__name__": "__main__"})
    _in_making: set[str] = field(default_factory=set)

    def read(self, page: Page) -> int:
        """Runs the page from top to bottom; returns how many commands were run."""
        try:
            return sum(self._do(page, fence) for fence in page.fences)
        finally:
            for server in self._servers.values():
                server.close()

    def _do(self, page: Page, fence: Fence) -> int:
        file = fence.value("file")
        if file:
            self._make_placeholders(fence.body)
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).write_text(fence.body, encoding="utf-8")
        if fence.reason_not_to_run is not None or (fence.waits_for_proof and not self.whole):
            return 0
        if fence.language == "python" and not file and not fence.value("title"):
            self._python(fence, f"{page.name}:{fence.line}")
            return 1
        lines = command_lines(fence.body) if fence.language == "bash" else []
        for line in lines:
            self.type(line, f"{page.name}:{fence.line}: {line}")
        return len(lines)

    def _python(self, fence: Fence, where: str) -> None:
        code = self._with_addresses(fence.body)
        self._make_placeholders(code)
        if not self.whole:
            self.patch.setattr("intaglio.training.recipe.load_recipe", _load_small)
        exec(compile(code, where, "exec"), self._names)

    def type(self, line: str, where: str) -> str:
        """Runs one command, and returns what it printed; `where` is named where it fails."""
        self._make_placeholders(line)
        words = shlex.split(line)
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), where
        elif words[0] == "pip" or words[:3] == ["python", "-m", "pip"]:
            _check_extras(line, where)
        elif words[0] == "cd":
            self.patch.chdir(words[1])
        elif words[0] == "export":
            self.patch.setenv(*words[1].split("=", 1))
        elif words[:2] == ["intaglio", "serve"]:
            self._serve([word for word in words[2:] if word != "&"])
        else:
            return self._intaglio_or_shell(self._with_addresses(line), where)
        return ""

    def _serve(self, words: list[str]) -> None:
        port = "8000"
        if "--port" in words:
            at = words.index("--port")
            port = words[at + 1]
            del words[at : at + 2]
        self._servers.setdefault(port, ExitStack()).close()  # whoever types this has ended the one before
        self._addresses[port] = self._servers[port].enter_context(forked_server(words))

    def _with_addresses(self, text: str) -> str:
        return _ADDRESS.sub(lambda found: self._address(found[1] or "8000"), text)

    def _address(self, port: str) -> str:
        """Of the page's server at that port; else of any that it has started, or of one that is started for it."""
        if not self._addresses:
            self._serve(["smollm2-135m-instruct", "--port", port])
        return self._addresses.get(port) or next(iter(self._addresses.values()))

    def _make_placeholders(self, text: str) -> None:
        for name, make in PLACEHOLDERS.items():
            read = re.search(rf"(?<![\w/.-])(?<!out=)(?<!--out ){name}(?![\w-])", text)
            if not read or Path(name).exists() or name in self._in_making:
                continue
            self._in_making.add(name)
            if isinstance(make, tuple):
                for line in make:
                    self.type(line, f"{name}: {line}")
            else:
                make(Path(name))

    def _intaglio_or_shell(self, line: str, where: str) -> str:
        command, rest = _split_at_operator(line)
        words = shlex.split(command)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            self.patch.setenv(*words.pop(0).split("=", 1))
        if words[:1] != ["intaglio"] or (rest and rest[0] not in "|>"):
            return _shell(line, where)
        out = self._intaglio(words, where)
        return _shell(f"cat {rest}", where, out) if rest else out

    def _intaglio(self, words: list[str], where: str) -> str:
        words = [one for word in words for one in (sorted(glob(word)) if "*" in word else []) or [word]]
        self.patch.setattr(sys, "argv", words if self.whole else words + more_arguments(words))
        self.patch.setattr(sys, "stdin", io.StringIO("/exit\n"))
        self.capture.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        captured = self.capture.readouterr()
        assert not end.value.code, f"{where}\n{captured.out[-2000:]}\n{captured.err[-2000:]}"
        return captured.out


def _load_small(path: Path, changes: list[str]) -> Recipe:
    return load_recipe(path, changes + more_arguments(["intaglio", "train", str(path), *changes]))


def _split_at_operator(line: str) -> tuple[str, str]:
    """The first command, and what follows it from its operator on."""
    quote = ""
    for at, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in _OPERATORS:
            return line[:at].removesuffix("2"), line[at:] if line[at - 1 : at] != "2" else line[at - 1 :]
    return line, ""


def _shell(line: str, where: str, stdin: str = "") -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        input=stdin,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
        timeout=_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, f"{where}\n{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}"
    return ended.stdout


def _check_extras(line: str, where: str) -> None:
    """A package is not installed by a test; what it names of ours must be there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extras in re.findall(r"(?:intaglio|\.)\[([\w,]+)\]", line):
        assert set(extras.split(",")) <= set(project["optional-dependencies"]), where
