"""The words of a text, as lexical search counts them."""

import re
from collections.abc import Iterator
from itertools import pairwise

__all__ = ["words"]

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_RUN = re.compile(rf"[{_CJK}]+|[^\W{_CJK}]+(?:\.[^\W{_CJK}]+)*")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+")
_COMMON = frozenset(
    "a an and any are as at be been but by can could did do does for from had has have how i if in into is it its me "
    "my of on or should so such than that the their them then there these they this those to was we were what when "
    "where which who why will with would you your".split()
)


def words(text: str) -> list[str]:
    """Words in lower case and the singular, without the commonest of English.

    A name that is written together counts whole and in its parts: `os.path.join`, `lru_cache` and `TemporaryDirectory`
    are found by either. Scripts without spaces give their characters and pairs of characters.
    """
    return [word for run in _RUN.findall(text) for word in _of_run(run) if word not in _COMMON]


def _of_run(run: str) -> Iterator[str]:
    if re.match(f"[{_CJK}]", run):
        yield from run
        yield from map("".join, pairwise(run))
        return
    parts = _PART.findall(run)
    yield from (_singular(part.lower()) for part in parts)
    if run not in parts:
        yield run.lower()


def _singular(word: str) -> str:
    """Only the endings of plurals go, after Harman's weak stemmer ("How effective is suffixing?", 1991)."""
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-2] if word.endswith(("sses", "xes", "zes", "ches", "shes")) else word[:-1]
