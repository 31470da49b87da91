"""Data sets that are made here, the same rows every time: dates as people write them, copying, and small sums."""

import datetime
import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from intaglio.data.datasets.choices import NUMBER_ALONE, asked
from intaglio.data.datasets.readers import Row
from intaglio.data.unpacking import needs

__all__ = ["LOCALES", "arithmetic", "copying", "dates"]

LOCALES: Final = (
    "ar bg bn ca cs da de el en en_GB es et fa fi fr he hi hr hu id it ja ko lt lv ms nb nl pl pt ro ru sk sl sr sv sw "
    "ta tr uk ur vi zh zh_Hant"
).split()

_FORMS: Final = ("short", "medium", "long", "full")
_DAYS: Final = range(datetime.date(1900, 1, 1).toordinal(), datetime.date(2100, 1, 1).toordinal())
_NUM_DATES: Final = 50_000
_NUM_COPIES: Final = 20_000
_LONGEST_COPY: Final = 60
_NUM_SUMS: Final = 6_000
_PLAIN: Final = str.maketrans({"\u202f": " ", "\u00a0": " ", "\u200f": None, "\u200e": None})
"""Spaces and marks that nobody types."""


def dates(folder: Path) -> Iterator[Row]:
    """Dates in the forms that CLDR knows for `LOCALES` (by Babel), each day once, and as ISO 8601.

    All have four digits of a year. Where the month is a number and the year does not come first, 01/02/2003 may be two
    days: then the locale stands before it. No text of one language is another day in another (a test tries them all).
    """
    babel = needs("babel.dates", "babel", "dates")
    patterns = {(locale, form): _pattern(babel, locale, form) for locale in LOCALES for form in _FORMS}
    draw = random.Random(0)
    for ordinal in draw.sample(_DAYS, _NUM_DATES):
        day, key = datetime.date.fromordinal(ordinal), draw.choice(list(patterns))
        locale, form = key
        written = _written(babel, day, locale, patterns[key])
        yield {"prompt": written, "completion": day.isoformat(), "locale": locale, "form": form}


def _pattern(babel: Any, locale: str, form: str) -> str:
    pattern: str = babel.get_date_format(form, locale=locale).pattern
    return pattern.replace("yy", "y")


def _written(babel: Any, day: datetime.date, locale: str, pattern: str) -> str:
    text: str = babel.format_date(day, pattern, locale=locale).translate(_PLAIN)
    return f"[{locale}] {text}" if "MMM" not in pattern and not pattern.startswith("y") else text


def copying(folder: Path) -> Iterator[Row]:
    """Letters to be written again: sources of 1 to 60, each length as often, so that one can ask what length costs."""
    draw = random.Random(0)
    for number in range(_NUM_COPIES):
        length = 1 + number % _LONGEST_COPY
        text = "".join(draw.choices(string.ascii_lowercase, k=length))
        yield {"prompt": text, "completion": text, "length": length}


def arithmetic(folder: Path) -> Iterator[Row]:
    """Sums and differences of numbers below 100, none of them negative, and products up to 12 x 12; no task twice."""
    small, smaller = range(100), range(13)
    tasks = [(f"{a} + {b}", a + b) for a in small for b in small]
    tasks += [(f"{a} - {b}", a - b) for a in small for b in small if a >= b]
    drawn = random.Random(0).sample(tasks, _NUM_SUMS) + [(f"{a} x {b}", a * b) for a in smaller for b in smaller]
    random.Random(1).shuffle(drawn)
    for task, answer in drawn:
        yield {"prompt": asked(f"What is {task}? {NUMBER_ALONE}"), "answer": str(answer)}
