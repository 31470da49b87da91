"""Marian's tokenizers: SentencePiece cuts a text, one model for sources and one for targets, and one list numbers both.

The numbers of `vocab.json` are not SentencePiece's own. A text may begin with a language code (`>>fr<<`), which is a
piece by itself. Special tokens written in a text are text.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.decoders import Metaspace
from tokenizers.models import WordLevel

from intaglio.errors import UserError
from intaglio.files import read_json, whole_file, write_json
from intaglio.text.tokenizer import Encoded, Tokenizer, read_eos_ids, read_mapping

__all__ = ["SOURCE_FILE", "TARGET_FILE", "PiecesTokenizer"]

SOURCE_FILE, TARGET_FILE, VOCAB_FILE = "source.spm", "target.spm", "vocab.json"
_NAMES = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}
_LANGUAGE = re.compile(r">>.*?<<")


class PiecesTokenizer(Tokenizer):
    """A tokenizer that reads sources; `encode_target` reads targets.

    Args:
        source, target: the contents of the two `.spm` files.
        vocab: the id of each piece of either.
        config: see `Tokenizer`; names the special tokens where they are not Marian's usual ones.
        eos_token_ids: see `Tokenizer`.

    Raises:
        UserError: sentencepiece is not installed, or the vocabulary lacks the unknown or the end token.
    """

    def __init__(
        self,
        source: bytes,
        target: bytes,
        vocab: Mapping[str, int],
        config: Mapping[str, Any] | None = None,
        *,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        names = {**_NAMES, **(config or {})}
        for name in ("unk_token", "eos_token"):
            if names[name] not in vocab:
                raise UserError(f"the {name} {names[name]!r} is not in the vocabulary", where=VOCAB_FILE)
        backend = tokenizers.Tokenizer(WordLevel(dict(vocab), unk_token=names["unk_token"]))
        backend.decoder = Metaspace()
        super().__init__(backend, names, eos_token_ids=eos_token_ids)
        self._vocab, self._files = dict(vocab), {SOURCE_FILE: source, TARGET_FILE: target}
        self._source, self._target = _processor(source, SOURCE_FILE), _processor(target, TARGET_FILE)

    @classmethod
    def from_directory(cls, path: str | Path) -> "PiecesTokenizer":
        """Reads `source.spm`, `target.spm`, `vocab.json` and `tokenizer_config.json`.

        Raises:
            UserError: a file is missing or makes no sense; or the sides have vocabularies of their own.
        """
        folder = Path(path)
        config, vocab = read_mapping(folder / "tokenizer_config.json"), read_json(folder / VOCAB_FILE)
        if not isinstance(vocab, dict) or not all(isinstance(number, int) for number in vocab.values()):
            raise UserError("not a list of pieces and their ids", where=str(folder / VOCAB_FILE))
        if config.get("separate_vocabs"):
            raise UserError("separate vocabularies of source and target are not supported", where=str(folder))
        source, target = (_bytes_of(folder / name) for name in (SOURCE_FILE, TARGET_FILE))
        return cls(source, target, vocab, config, eos_token_ids=read_eos_ids(folder))

    def save(self, path: str | Path) -> None:
        """Writes the same four files."""
        folder = Path(path)
        for name, content in self._files.items():
            with whole_file(folder / name) as beside:
                beside.write_bytes(content)
        write_json(folder / VOCAB_FILE, self._vocab)
        write_json(folder / "tokenizer_config.json", {**self._config, "tokenizer_class": "MarianTokenizer"})

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a source, the end token behind them where special tokens are added."""
        return self._ids(self._source, text, add_special_tokens)

    def encode_target(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The same of a target."""
        return self._ids(self._target, text, add_special_tokens)

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """See `encode`."""
        return [self.encode(text, add_special_tokens) for text in texts]

    def encode_with_offsets(self, text: str) -> Encoded:
        """The ids of a source, nothing added, with the characters each piece came from; no language code is known."""
        pieces = self._source.encode(text, return_type="proto").pieces
        bounds = [0, *accumulate(len(character.encode()) for character in text)]  # bytes before each character
        place = {byte: number for number, byte in enumerate(bounds)}
        offsets = [(place[piece.begin], place[piece.end]) for piece in pieces]
        return Encoded(self._numbered([piece.piece for piece in pieces]), offsets)

    def _ids(self, processor: Any, text: str, add_special_tokens: bool) -> list[int]:
        code = _LANGUAGE.match(text)
        begin = code.end() if code else 0
        pieces: list[str] = processor.encode(text[begin:], out_type=str)
        ids = self._numbered([text[:begin], *pieces] if code else pieces)
        return [*ids, self._vocab[self.special_tokens["eos_token"]]] if add_special_tokens else ids

    def _numbered(self, pieces: Sequence[str]) -> list[int]:
        unknown = self._vocab[self.special_tokens["unk_token"]]
        return [self._vocab.get(piece, unknown) for piece in pieces]


def _processor(model: bytes, name: str) -> Any:
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        mend = "pip install 'intaglio[translate]'"
        raise UserError("a tokenizer of .spm files needs sentencepiece", mend=mend) from error
    try:
        return SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise UserError("not a SentencePiece model", where=name) from error


def _bytes_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(file)) from error
