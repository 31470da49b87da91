"""What was answered, taken out of a text: a letter, a number.

The last valid answer counts, since a model may think aloud first. What repeats the question is none: a placeholder
(`ANSWER: [LETTER]`), an enumeration of the letters, the list of options. Letters inside words never count.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import takewhile

__all__ = ["extract_choice", "extract_number", "last_number"]

_NUMBER = re.compile(r"(?:(?<![\w)])[-+−])?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?")
_FINAL = "####"

# Where an answer is announced; the letter comes next. `答案不是` or `is not` is no announcement.
_ANNOUNCED = (
    r"(?:\b(?:answer|choice|option)s?[*_]*(?: is|\s*:|\s*=)+"
    r"|\b(?:choose|chose|pick|select)"
    r"|\\boxed"
    r"|(?:答案|选项|選項)\s*(?:应该是|應該是|应为|應為|是|为|為|:)+"
    r"|选择|選擇|选|選)"
    r"(?: (?:the )?(?:answer|choice|option|letter))?"
)
_DRESS = r"[\s*_`$\"'“‘(\[{【「:]*"  # what may stand around a letter: brackets, stars, quotes
_UNDRESS = r"[*_`$\"'”’)\]}】」]*"
_BETWEEN = r"\s*(?:,|/|\||、|;|\bor\b|\band\b|或者|或|和|与)\s*"
_END = r"(?![A-Za-z0-9_'’])"
_FEWEST_OPTIONS = 3


def extract_choice(text: str, letters: Sequence[str]) -> str | None:
    """The letter that a text answers with, or None.

    First what is announced (`ANSWER: (C)`, `The answer is c`, `C is correct`, `答案：B`, `选B`), then a line that
    begins with a letter as options do (`B. Paris`, `(b)`, `B`), then a letter in brackets or in bold, then one that
    ends the text (`So it must be C.`). Of each kind the last counts.

    Args:
        text: in any case, in half or full width.
        letters: the valid ones, such as `ABCD`; what is returned is one of these.
    """
    plain = unicodedata.normalize("NFKC", text).strip()
    by_key = {letter.casefold(): letter for letter in letters}
    for kind in (_announced, _leading, _bracketed, _ending):
        found = [by_key[letter.casefold()] for letter in kind(plain, "".join(by_key))]
        if found:
            return found[-1]
    return None


def extract_number(text: str) -> float | None:
    """The number that a text answers with: behind the last `####` (GSM8K, Cobbe et al. 2021), else its last one."""
    _, mark, final = text.rpartition(_FINAL)
    numbers = _NUMBER.findall(final) if mark else []
    return _value(numbers[0]) if numbers else last_number(text)


def last_number(text: str) -> float | None:
    """The last number of a text (`-3`, `1,234.5`, `3/4`), or None; the `-` of `5-3` is no sign."""
    numbers = _NUMBER.findall(text)
    return _value(numbers[-1]) if numbers else None


def _value(number: str) -> float | None:
    above, _, below = number.replace(",", "").replace("−", "-").partition("/")
    if below and not float(below):
        return None
    return float(above) / (float(below) if below else 1.0)


def _announced(text: str, keys: str) -> Iterator[str]:
    """Not where several letters are named (`A, B, C or D`), nor where an article follows (`the answer is a dog`)."""
    found = [*_announcement(keys).finditer(text), *_verdict(keys).finditer(text)]
    for match in sorted(found, key=lambda match: match.start("letter")):
        named = [name for name, letter in match.groupdict().items() if letter and not _is_word(match, name)]
        if named == ["letter"]:
            yield match["letter"]


def _leading(text: str, keys: str) -> Iterator[str]:
    """Lines that begin as options do, and do not go on with the next ones."""
    lines = [line for line in text.splitlines() if not _lists(_bracketed_letters(line, keys), keys)]
    found = [match["letter"] for line in lines if (match := _option(keys).match(line))]
    yield from _without_lists(found, keys)


def _bracketed(text: str, keys: str) -> Iterator[str]:
    """`(C)`, `[C]` or `**C**`."""
    yield from _without_lists(_bracketed_letters(text, keys), keys)


def _bracketed_letters(text: str, keys: str) -> list[str]:
    return [match["letter"] or match["bold"] for match in _brackets(keys).finditer(text)]


def _ending(text: str, keys: str) -> Iterator[str]:
    """A capital at the end, behind a word that concludes: not that of `vitamin C`."""
    concluded = rf"\b(?:is|be|it's|so|therefore|thus|hence),? ([{re.escape(keys.upper())}])[\s.!]*$"
    match = re.search(concluded, text)
    if match:
        yield match[1]


def _without_lists(found: Sequence[str], keys: str) -> Iterator[str]:
    """Letters that are not part of a list of options."""
    place = 0
    while place < len(found):
        listed = _lists(found[place:], keys)
        if not listed:
            yield found[place]
        place += listed or 1


def _lists(found: Sequence[str], keys: str) -> int:
    """How many letters at the start list options: the first ones in their order, all of them or at least three."""
    pairs = zip(found, keys, strict=False)
    count = len([*takewhile(lambda pair: pair[0].casefold() == pair[1], pairs)])
    return count if count >= max(2, min(_FEWEST_OPTIONS, len(keys))) else 0


def _is_word(match: re.Match[str], name: str) -> bool:
    """Whether a small `a` or `i` is an article or a pronoun: a word follows."""
    return match[name] in "ai" and re.match(r" +[^\W\d_]", match.string[match.end(name) :]) is not None


@lru_cache
def _announcement(keys: str) -> re.Pattern[str]:
    letter = f"[{re.escape(keys)}]"
    more = f"(?:{_UNDRESS}{_BETWEEN}{_DRESS}(?P<other>{letter}){_END})?"
    return re.compile(rf"{_ANNOUNCED}{_DRESS}(?P<letter>{letter}){_END}{more}", re.IGNORECASE)


@lru_cache
def _verdict(keys: str) -> re.Pattern[str]:
    """`(C) is the correct answer`, `选项C是正确的`."""
    right = r"(?: is (?:the )?(?:correct|right|best)\b|\s*(?:选项|項|项)?(?:是)?正确)"
    one = f"(?P<letter>[{re.escape(keys)}]){_END}{_UNDRESS}"
    return re.compile(rf"(?<![A-Za-z0-9_'’]){one}{right}", re.IGNORECASE)


@lru_cache
def _option(keys: str) -> re.Pattern[str]:
    return re.compile(rf"\s*[(\[*]*(?P<letter>[{re.escape(keys)}])(?:[)\]*]*\s*$|[*]*[.):、,\]])", re.IGNORECASE)


@lru_cache
def _brackets(keys: str) -> re.Pattern[str]:
    letter = f"[{re.escape(keys)}]"
    return re.compile(rf"[(\[](?P<letter>{letter})[)\]]|\*\*(?P<bold>{letter})\*\*", re.IGNORECASE)
