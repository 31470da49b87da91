"""Answers put in order by whoever sits at the terminal, who does not see where they are from."""

import random
from collections.abc import Sequence
from string import ascii_uppercase
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from intaglio.errors import UserError

if TYPE_CHECKING:
    from intaglio.data.preference_encoding import PromptExample
    from intaglio.engine.llm import Completion
    from intaglio.evaluation.ranking import Order, Verdict

__all__ = ["Desk", "read_order"]

_HELP: Final = "best first, = for a tie: B > A = C > D (or BA=CD); s skips, u takes the last one back, q ends for now"
_ORDERS: Final[dict[str, "Order"]] = {
    "s": "skip",
    "skip": "skip",
    "u": "undo",
    "undo": "undo",
    "q": "quit",
    "quit": "quit",
}


class Desk:
    """See `Ranker`."""

    name = "terminal"

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False)  # answers are a model's

    def __call__(self, example: "PromptExample", answers: Sequence["Completion"]) -> "Verdict | Order":
        """Shows the answers, in an order that tells nothing, until somebody has decided."""
        from intaglio.evaluation.ranking import Verdict

        shown = random.Random(example.where).sample(range(len(answers)), len(answers))
        letters = ascii_uppercase[: len(answers)]
        self._show(example, [answers[i].text for i in shown], letters)
        while True:
            said = self._read()
            if said in _ORDERS:
                return _ORDERS[said]
            try:
                ranks = read_order(said, letters)
            except UserError as error:
                self._console.print(Text(str(error), style="yellow"))
                continue
            return Verdict("ranks", tuple(float(ranks[shown.index(i)]) for i in range(len(answers))))

    def _read(self) -> str:
        """What is typed; the end of the input ends the work."""
        try:
            return self._console.input(Text("> ")).strip().lower()
        except EOFError:
            return "q"

    def _show(self, example: "PromptExample", texts: Sequence[str], letters: str) -> None:
        self._console.rule(Text(example.where))
        source = example.source
        for message in [{"role": "prompt", "content": source}] if isinstance(source, str) else source:
            self._console.print(
                Panel(_printable(str(message.get("content"))), title=Text(str(message["role"])), style="dim")
            )
        for letter, text in zip(letters, texts, strict=True):
            self._console.print(Panel(_printable(text), title=Text(letter)))
        self._console.print(Text(_HELP, style="dim"))


def read_order(said: str, letters: str) -> list[int]:
    """The rank of each letter, from 1; those joined by = have one.

    Raises:
        UserError: a letter is missing, said twice or unknown.
    """
    ranks: dict[str, int] = {}
    tied, rank = False, 0
    for sign in said.upper():
        if sign == "=":
            tied = True
        elif sign in letters and sign not in ranks:
            rank += not (tied and ranks)
            ranks[sign], tied = rank, False
        elif not (sign.isspace() or sign in ">,"):
            raise UserError(f"{sign} is {'said twice' if sign in ranks else 'no answer'}", mend=_HELP)
    missing = [letter for letter in letters if letter not in ranks]
    if missing:
        raise UserError(f"{' and '.join(missing)} missing", mend=_HELP)
    return [ranks[letter] for letter in letters]


def _printable(text: str) -> Text:
    return Text("".join(letter if letter.isprintable() or letter == "\n" else "�" for letter in text))
