"""From a token as the vocabulary spells it to the bytes it stands for, and how a tokenizer's decoder joins tokens.

Three spellings are in use. Byte-level BPE (GPT-2 and after) gives each byte a printable character. SentencePiece
writes a space as `▁` and, where it has byte fallback, a byte that belongs to no piece as `<0xE4>`. All else is text.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

import tokenizers

__all__ = ["Spelling", "byte_alphabet"]

_FALLBACK_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_PIECE = "▁"


def byte_alphabet() -> dict[str, int]:
    """The character byte-level BPE writes for each byte, to that byte (256 entries).

    A byte that Latin-1 prints stands for itself; the other 68 take the code points from 256 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(256)) - set(printable))
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(hidden)}


_BYTE_OF = byte_alphabet()


@dataclass(frozen=True)
class Spelling:
    """How a vocabulary spells bytes.

    Attributes:
        byte_level: one printable character a byte.
        byte_fallback: `<0xE4>` stands for a byte.
        space_piece: `▁` stands for a space.
    """

    byte_level: bool
    byte_fallback: bool
    space_piece: bool

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer) -> "Spelling":
        """Reads the spelling off the decoder, which is what turns tokens into text."""
        steps = _decoder_steps(backend)
        kinds = {step["type"] for step in steps}
        replaces = any(step.get("pattern") == {"String": _SPACE_PIECE} for step in steps)
        return cls("ByteLevel" in kinds, "ByteFallback" in kinds, replaces or "Metaspace" in kinds)

    def to_bytes(self, token: str) -> bytes:
        """The bytes of one token, whatever its neighbours are."""
        if self.byte_level:
            # a token with a character outside the alphabet (an added one, say) is its own text
            spelt = [_BYTE_OF.get(character) for character in token]
            return token.encode() if None in spelt else bytes(b for b in spelt if b is not None)
        if self.is_fallback_byte(token):
            return bytes([int(token[3:5], 16)])
        return (token.replace(_SPACE_PIECE, " ") if self.space_piece else token).encode()

    def is_fallback_byte(self, token: str) -> bool:
        """Whether `token` is a byte that belongs to no piece."""
        return self.byte_fallback and _FALLBACK_BYTE.fullmatch(token) is not None


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    state = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    return steps
