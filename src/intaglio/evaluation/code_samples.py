"""Two questions to sampled Python code: does it hold together, and is it more than the training text by heart?"""

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["CodeVerdict", "SharedText", "judge_code", "longest_shared"]

FEWEST_LINES, FEWEST_STATEMENTS = 8, 3

Hashes = NDArray[np.uint64]
Codes = NDArray[np.uint32]

BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64
BLOCK = 1 << 19  # windows hashed at a time: what a cache holds
FILTER_BITS = 22
BETWEEN = 0x110000  # stands between documents; no character has this code


@dataclass(frozen=True)
class CodeVerdict:
    """What `judge_code` found.

    Attributes:
        parses: by `ast`, once the last line is cut.
        code_lines: lines with code on them; blank ones, comments and docstrings are none.
        statements: docstrings left out.
    """

    parses: bool
    code_lines: int
    statements: int

    @property
    def passes(self) -> bool:
        """Parses, and is long enough for that to mean something."""
        return self.parses and self.code_lines >= FEWEST_LINES and self.statements >= FEWEST_STATEMENTS


def judge_code(sample: str) -> CodeVerdict:
    """Judges a sample, prompt included; what stands after its last newline is cut, since it may be half a line."""
    code = sample.rpartition("\n")[0] + "\n"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return CodeVerdict(False, 0, 0)
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    strings = [node for node in statements if _is_bare_string(node)]
    return CodeVerdict(True, len(_code_lines(code) - _lines_of(strings)), len(statements) - len(strings))


def _is_bare_string(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _lines_of(nodes: list[ast.stmt]) -> set[int]:
    return {line for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def _code_lines(code: str) -> set[int]:
    """Numbers of the lines that a token of code stands on."""
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    found = [token for token in tokens if token.type not in layout]
    return {line for token in found for line in range(token.start[0], token.end[0] + 1)}


@dataclass(frozen=True)
class SharedText:
    """The longest text that a sample shares with the training text.

    Attributes:
        length: in characters; 0 where not even one is shared.
        text: itself.
        sample: number of the sample that it stands in.
    """

    length: int
    text: str
    sample: int


def longest_shared(samples: Sequence[str], documents: Sequence[str]) -> SharedText:
    """The longest run of characters that any of `samples` has in common with any of `documents`.

    Whatever is shared at one length is shared at every shorter one, so the length is found by halving: at each, the
    windows of both sides are compared by hash, and one that agrees is looked for as it is.
    """
    corpus = _codes(documents)
    windows = [_codes([sample]) for sample in samples]
    best = SharedText(0, "", 0)
    low, high = 1, max(map(len, samples), default=0)
    while low <= high:
        middle = (low + high) // 2
        found = _shared(samples, windows, documents, corpus, middle)
        if found:
            best, low = found, middle + 1
        else:
            high = middle - 1
    return best


def _codes(documents: Sequence[str]) -> Codes:
    """Characters as numbers, documents apart from one another."""
    joined = np.array([BETWEEN], dtype=np.uint32)
    parts = [np.frombuffer(one.encode("utf-32-le", "surrogatepass"), dtype=np.uint32) for one in documents]
    return np.concatenate([joined, *(array for part in parts for array in (part, joined))])


def _shared(
    samples: Sequence[str], windows: list[Codes], documents: Sequence[str], corpus: Codes, length: int
) -> SharedText | None:
    """A run of `length` characters that is on both sides, if there is one."""
    hashes = [np.concatenate([*_hashes(codes[1:-1], length)]) for codes in windows]
    known = _Known(hashes)
    for block in _hashes(corpus, length):
        for sample, place in known.find(block):
            text = samples[sample][place : place + length]
            if any(text in document for document in documents):
                return SharedText(length, text, sample)
    return None


def _hashes(codes: Codes, length: int) -> Iterator[Hashes]:
    """A hash of each window of `length`, block by block: sum of code * BASE**i, counted from the window's start."""
    last = max(codes.size - length + 1, 0)
    yield np.empty(0, np.uint64)
    for start in range(0, last, BLOCK):
        block = codes[start : min(start + BLOCK, last) + length - 1].astype(np.uint64) + np.uint64(1)
        powers, inverses = _powers(BLOCK + length)
        sums = np.concatenate(([np.uint64(0)], np.cumsum(block * powers[: block.size], dtype=np.uint64)))
        yield (sums[length:] - sums[:-length]) * inverses[: block.size - length + 1]


@lru_cache(maxsize=2)
def _powers(count: int) -> tuple[Hashes, Hashes]:
    """BASE**i and its inverse, modulo 2**64."""

    def table(base: int) -> Hashes:
        steps = np.full(count, np.uint64(base), dtype=np.uint64)
        steps[0] = 1
        return np.cumprod(steps, dtype=np.uint64)

    return table(BASE), table(pow(BASE, -1, 1 << 64))


class _Known:
    """The windows of the samples by their hash: a table of bits first, which lets few others through."""

    def __init__(self, hashes: list[Hashes]) -> None:
        joined = np.concatenate(hashes)
        self._sort = np.argsort(joined, kind="stable")
        self._hashes = joined[self._sort]
        self._starts = np.cumsum([0, *(one.size for one in hashes)])
        self._filter = np.zeros(1 << FILTER_BITS, dtype=np.bool_)
        self._filter[_slot(joined)] = True

    def find(self, hashes: Hashes) -> Iterator[tuple[int, int]]:
        """(sample, place) of those known windows whose hash is among `hashes`."""
        likely = hashes[self._filter[_slot(hashes)]]
        if not likely.size or not self._hashes.size:
            return
        place = np.searchsorted(self._hashes, likely)
        place[place == self._hashes.size] = 0
        for window in np.unique(self._sort[place[self._hashes[place] == likely]]):
            sample = int(np.searchsorted(self._starts, window, side="right")) - 1
            yield sample, int(window - self._starts[sample])


def _slot(hashes: Hashes) -> NDArray[np.uint64]:
    """The top bits: the low ones of such a hash hardly mix."""
    return hashes >> np.uint64(64 - FILTER_BITS)
