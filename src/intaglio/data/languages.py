"""The language of a text: py3langid's guess where it is installed, else the script it is written in."""

import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module

__all__ = ["language_namer", "script_of"]

_LOOKED_AT = 2000  # characters: enough to tell
_FEWEST = 12  # letters below which a guess is none
_HAN = ("CJK", "BOPOMOFO")
_KANA = ("HIRAGANA", "KATAKANA")


def language_namer() -> tuple[str, Callable[[str], str]]:
    """("language" or "script", what names it for a text)."""
    try:
        identifier = import_module("py3langid")
    except ImportError:
        return "script", script_of

    def language_of(text: str) -> str:
        beginning = text[:_LOOKED_AT]
        if sum(map(str.isalpha, beginning)) < (_FEWEST if script_of(beginning) == "Latin" else 1):
            return "too short"
        return str(identifier.classify(beginning)[0])

    return "language", language_of


def script_of(text: str) -> str:
    """The script most letters belong to: `Latin`, `Cyrillic`; `Han` for Chinese, `Kana` where Japanese shows."""
    scripts = Counter(_script(letter) for letter in text[:_LOOKED_AT] if letter.isalpha())
    if not scripts:
        return "no letters"
    if scripts["Kana"] and scripts["Kana"] * 10 >= scripts["Han"]:
        return "Kana"
    return scripts.most_common(1)[0][0]


@lru_cache(maxsize=4096)
def _script(letter: str) -> str:
    """The first word of a letter's Unicode name is its script, or near it."""
    word = unicodedata.name(letter, "UNKNOWN").replace("-", " ").split()[0]
    if word in _HAN:
        return "Han"
    return "Kana" if word in _KANA else word.capitalize()
