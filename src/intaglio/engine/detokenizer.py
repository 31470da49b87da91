"""Token ids to text while they come, without ever showing half a character.

The pieces put together are exactly what `Tokenizer.decode` makes of all ids at once; behind a prompt, what they add to
the prompt's text. Each token is decoded a constant number of times, however long the text becomes.
"""

import codecs
from collections.abc import Iterable, Sequence

from intaglio.text.tokenizer import Tokenizer

__all__ = ["Detokenizer"]

_LONGEST = 4  # bytes of a character


class Detokenizer:
    """Streams the text of one sequence.

    Args:
        tokenizer: whose ids come in.
        skip_special_tokens: whether special tokens give no text, as in `Tokenizer.decode`.
        prompt: ids that the text continues. None of their text is given, but a character that they begin is, when it is
            whole, and so is the space of a first token that would lose it if it stood alone.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True, prompt: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        kind = _Bytes if tokenizer.spelling.byte_level else _Window
        self._stream: _Bytes | _Window = kind(tokenizer, self._end_of(prompt))

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

    def _end_of(self, prompt: Sequence[int]) -> list[tuple[int, str]]:
        """As many of the prompt's last tokens as the text may hang on."""
        end: list[tuple[int, str]] = []
        for token_id, token in self._known(reversed(prompt)):
            end.insert(0, (token_id, token))
            if len(end) >= _LONGEST and not self._tokenizer.spelling.is_fallback_byte(token):
                break
        return end


class _Bytes:
    """Byte-level vocabularies: the bytes of the tokens in a row are the text in UTF-8."""

    def __init__(self, tokenizer: Tokenizer, prompt: list[tuple[int, str]]) -> None:
        self._spelling = tokenizer.spelling
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = _unfinished(b"".join(self._spelling.to_bytes(token) for _, token in prompt))

    def add(self, token_id: int, token: str) -> str:
        new = self._spelling.to_bytes(token)
        if new and self._begun:
            new, self._begun = (self._begun + new if _goes_on(self._begun, new) else new), b""
        return self._decoder.decode(new)

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


def _unfinished(data: bytes) -> bytes:
    """The first bytes of a character with which `data` ends, if it does."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return decoder.getstate()[0]


def _goes_on(begun: bytes, new: bytes) -> bool:
    """Whether a character that was begun can go on with the first of the new bytes."""
    try:
        codecs.utf_8_decode(begun + new[:1], "strict", False)
    except UnicodeDecodeError:
        return False
    return True


class _Window:
    """Other vocabularies: a token's text may depend on the one before it (a leading space, say), on no earlier one.

    A run of fallback bytes is text only as a whole (one bad byte spoils the run), so it is held until it ends.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: list[tuple[int, str]]) -> None:
        self._tokenizer = tokenizer
        places = [place for place, (_, token) in enumerate(prompt, 1) if not tokenizer.spelling.is_fallback_byte(token)]
        start, ids = max(places, default=0), [token_id for token_id, _ in prompt]
        self._before = ids[max(start - 1, 0) : start]  # the last token shown, or none
        self._held = ids[start:]
        self._shown = self._readings(b"".join(tokenizer.token_bytes(i) for i in self._held))

    def add(self, token_id: int, token: str) -> str:
        self._held.append(token_id)
        return "" if self._tokenizer.spelling.is_fallback_byte(token) else self.flush()

    def flush(self) -> str:
        if not self._held:
            return ""
        text = self._decode(self._before + self._held)
        shown = next((shown for shown in self._shown if text.startswith(shown)), None)
        assert shown is not None, "a token changed the text before it"
        self._before, self._held = self._held[-1:], []
        self._shown = self._readings(b"")
        return text[len(shown) :]

    def _readings(self, run: bytes) -> list[str]:
        """How the text begins that has been shown: the last token's, then a run of bytes, spoilt or not."""
        before = self._decode(self._before)
        whole = run.removesuffix(_unfinished(run)).decode(errors="replace")
        return [before + "\ufffd" * len(run), before + whole]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)
