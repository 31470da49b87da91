"""What a figure of the atlas is: data that a small run makes, and the panels drawn from them, in either language."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Final, NamedTuple

from intaglio.atlas.svg import Canvas

__all__ = ["LANGUAGES", "Figure", "Say", "Words", "chinese", "english"]

Say = Callable[[str, str], str]
"""Chooses between an English and a Chinese text."""


class Words(NamedTuple):
    """A text in both languages."""

    en: str
    zh: str


def english(en: str, zh: str) -> str:
    """See `Say`."""
    return en


def chinese(en: str, zh: str) -> str:
    """See `Say`."""
    return zh


LANGUAGES: Final[dict[str, Say]] = {"en": english, "zh": chinese}


class Figure(ABC):
    """A dataclass whose fields are the sizes of its run.

    Attributes:
        name: as the command line has it.
        title: above it.
        claim: of the story, which it shows or measures.
    """

    name: ClassVar[str]
    title: ClassVar[Words]
    claim: ClassVar[Words]

    @abstractmethod
    def data(self) -> Any:
        """What is measured, as plain JSON values: made by running the code, kept under a key of it (`keep`).

        Raises:
            UserError: something that it needs is not here, such as a model.
        """

    @abstractmethod
    def caption(self, data: Any) -> Words:
        """What is to be seen, with the numbers from `data`."""

    @abstractmethod
    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        """The panels, each narrow enough for a phone where that can be."""

    def leaves(self, data: Any, say: Say) -> Mapping[str, Sequence[Canvas]]:
        """Further pictures by name, which the panels link to as `#NAME`."""
        return {}

    def inputs(self) -> str:
        """What else than code and sizes the data hang on, such as a model's files."""
        return ""

    def plain(self) -> dict[str, Any]:
        """The sizes."""
        return asdict(self)  # type: ignore[call-overload]
