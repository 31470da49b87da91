"""The prompt: a question with numbered sources, in no more tokens than it may have."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from intaglio.errors import UserError
from intaglio.retrieval.index import Chunk
from intaglio.retrieval.search import Hit
from intaglio.text.messages import Message

__all__ = ["NOT_FOUND", "Prompt", "Source", "fitted_prompt"]

NOT_FOUND = "This is not in the documents."
"""The whole answer where the documents do not hold one."""

_ASK = f"""\
Answer the question from the sources below, and from nothing else. After each statement, put the number of its source in
square brackets, such as [1]. If the sources do not hold the answer, say: {NOT_FOUND}

{{sources}}

Question: {{question}}"""


@dataclass(frozen=True)
class Source:
    """A passage as it stands in a prompt.

    Attributes:
        number: how it is cited, from 1.
        chunk: the passage.
        text: of the passage, as much as there was room for.
    """

    number: int
    chunk: Chunk
    text: str

    def __str__(self) -> str:
        title = f": {self.chunk.title}" if self.chunk.title else ""
        return f"[{self.number}] {self.chunk.file}{title}\n{self.text}"


@dataclass(frozen=True)
class Prompt:
    """What a model is asked.

    Attributes:
        messages: the conversation.
        sources: those in it, in order.
        tokens: of all of it, as the model reads it.
    """

    messages: list[Message]
    sources: list[Source]
    tokens: int


def fitted_prompt(
    messages: Sequence[Message], hits: Sequence[Hit], count: Callable[[Sequence[Message]], int], budget: int
) -> Prompt:
    """The conversation with as many of the passages in its last question as the budget allows, the best first.

    A passage that does not fit is left out with all behind it; the first is shortened instead, word by word.

    Args:
        messages: a conversation that ends with the user's question.
        hits: what was found, the best first.
        count: tokens of messages, as the model reads them.
        budget: tokens that the whole may have.

    Raises:
        UserError: the conversation alone has more, or so many that not a word of a source fits.
    """
    assert hits, "nothing found is no prompt"
    whole = [Source(number, hit.chunk, hit.chunk.text) for number, hit in enumerate(hits, 1)]

    def fits(sources: Sequence[Source]) -> bool:
        return count(_asked(messages, sources)) <= budget

    taken = _most(len(whole), lambda n: fits(whole[:n]))
    sources = whole[:taken] or [_shortened(whole[0], fits)]
    if not sources[0].text:
        bare = count(_asked(messages, []))
        raise UserError(f"the question takes {bare} of {budget} tokens: no source fits", mend="allow more of them")
    asked = _asked(messages, sources)
    return Prompt(asked, sources, count(asked))


def _asked(messages: Sequence[Message], sources: Sequence[Source]) -> list[Message]:
    *before, last = messages
    content = _ASK.format(sources="\n\n".join(map(str, sources)), question=last["content"])
    return [*before, {**last, "content": content}]


def _shortened(source: Source, fits: Callable[[Sequence[Source]], bool]) -> Source:
    """The source with as many of its words as fit, maybe none."""
    ends = [0, *(word.end() for word in re.finditer(r"\S+", source.text))]
    kept = _most(len(ends) - 1, lambda n: fits([replace(source, text=source.text[: ends[n]])]))
    return replace(source, text=source.text[: ends[kept]])


def _most(total: int, fits: Callable[[int], bool]) -> int:
    """The largest n up to `total` that fits, where less fits whenever more does; 0 if 1 does not."""
    low, high = 0, total
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
