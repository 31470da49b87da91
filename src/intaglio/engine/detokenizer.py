"""Token ids to text while they come, without ever showing half a character.

The pieces put together are exactly what `Tokenizer.decode` makes of all ids at once. Each token is decoded a constant
number of times, however long the text becomes.
"""

import codecs
from collections.abc import Iterable

from intaglio.text.tokenizer import Tokenizer

__all__ = ["Detokenizer"]


class Detokenizer:
    """Streams the text of one sequence.

    Args:
        tokenizer: whose ids come in.
        skip_special_tokens: whether special tokens give no text, as in `Tokenizer.decode`.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._stream = _Bytes(tokenizer) if tokenizer.spelling.byte_level else _Window(tokenizer)

    def add(self, ids: Iterable[int]) -> str:
        """Takes further ids and returns the text that they finish."""
        return "".join([self._stream.add(i, token) for i, token in self._known(ids)])

    def flush(self) -> str:
        """Ends the sequence and returns what was held back; half a character becomes U+FFFD."""
        return self._stream.flush()

    def _known(self, ids: Iterable[int]) -> Iterable[tuple[int, str]]:
        for token_id in ids:
            token = None if token_id in self._skipped else self._tokenizer.token(token_id)
            if token is not None:
                yield token_id, token


class _Bytes:
    """Byte-level vocabularies: the bytes of the tokens in a row are the text in UTF-8."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._spelling = tokenizer.spelling
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_id: int, token: str) -> str:
        return self._decoder.decode(self._spelling.to_bytes(token))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class _Window:
    """Other vocabularies: a token's text may depend on the one before it (a leading space, say), on no earlier one.

    A run of fallback bytes is text only as a whole (one bad byte spoils the run), so it is held until it ends.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []  # the last token shown, or none
        self._held: list[int] = []

    def add(self, token_id: int, token: str) -> str:
        self._held.append(token_id)
        return "" if self._tokenizer.spelling.is_fallback_byte(token) else self.flush()

    def flush(self) -> str:
        if not self._held:
            return ""
        shown = self._decode(self._before)
        text = self._decode(self._before + self._held)
        assert text.startswith(shown), "a token changed the text before it"
        self._before, self._held = self._held[-1:], []
        return text[len(shown) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)
