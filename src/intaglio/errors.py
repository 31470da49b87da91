"""One kind of error for everything a user can mend: one line saying what, where, and how to mend it."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["UserError", "nearest"]


class UserError(Exception):
    """A mistake in what we were given (a file, a key, a prompt), never one of ours.

    The command line prints it as a single line and exits with status 2; from Python it is an exception.

    Args:
        what: what is wrong.
        where: file, line or key, if there is one.
        mend: what the user can do about it.
    """

    def __init__(self, what: str, *, where: str = "", mend: str = "") -> None:
        self.what, self.where, self.mend = what, where, mend
        super().__init__(" ".join(f"{where + ': ' if where else ''}{what}{'; ' + mend if mend else ''}".split()))


def nearest(name: str, known: Iterable[str]) -> str:
    """The mend for a misspelt name: the closest known ones, or all of them when none is close."""
    names = sorted(known)
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"
