"""Train a byte-level BPE tokenizer on a folder of text files (Sennrich et al. 2016 over bytes, as GPT-2 has it)."""

import codecs
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from intaglio.errors import UserError
from intaglio.text.tokenizer import Tokenizer

__all__ = ["Skipped", "TrainedTokenizer", "train_on", "train_tokenizer"]

_CHUNK = 1 << 20  # characters or bytes read at a time


@dataclass(frozen=True)
class Skipped:
    """A file that was not learned from, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class TrainedTokenizer:
    """A new tokenizer, the files it was learned from and those that were left out."""

    tokenizer: Tokenizer
    files: tuple[Path, ...]
    skipped: tuple[Skipped, ...]


def train_tokenizer(
    folder: str | Path, vocab_size: int, special_tokens: Sequence[str] = ("<|endoftext|>",)
) -> TrainedTokenizer:
    """Learns a vocabulary from every text file under `folder`; the same files give the same tokenizer.

    Files are read a piece at a time, in the order of their names. Hidden ones are not looked at; one that is not
    UTF-8 text is skipped and listed.

    Args:
        folder: a folder of UTF-8 text files, searched to the bottom.
        vocab_size: tokens wanted, special ones and the 256 bytes included; little text may give fewer.
        special_tokens: get the first ids; the first of them ends a text (and is the tokenizer's EOS and BOS).

    Raises:
        UserError: no text in the folder, a `vocab_size` that cannot hold the bytes, or no special token.
    """
    _check_size(vocab_size, special_tokens)
    files, skipped = _sort_out(Path(folder))
    texts = (piece for file in files for piece in _pieces(file))
    return TrainedTokenizer(train_on(texts, vocab_size, special_tokens), files, skipped)


def train_on(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: Sequence[str] = ("<|endoftext|>",),
    pattern: str | None = None,
) -> Tokenizer:
    """The same on texts that are at hand; see `train_tokenizer`.

    Args:
        pattern: a regular expression of what no token reaches across (words, numbers, line breaks with their
            indentation); None is GPT-2's.

    Raises:
        UserError: see `train_tokenizer`; or a pattern that is no regular expression.
    """
    _check_size(vocab_size, special_tokens)
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = _splitter(pattern)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    ends = special_tokens[0]
    return Tokenizer(backend, {"bos_token": ends, "eos_token": ends})


def _splitter(pattern: str | None) -> pre_tokenizers.PreTokenizer:
    if pattern is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    try:
        split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"not a regular expression: {error}", where="tokenizer.pattern") from error
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _check_size(vocab_size: int, special_tokens: Sequence[str]) -> None:
    if not special_tokens:
        raise UserError("a tokenizer needs at least one special token, to end a text with")
    least = 256 + len(set(special_tokens))
    if vocab_size < least:
        raise UserError(
            f"a vocabulary of {vocab_size} cannot hold the 256 bytes and {len(set(special_tokens))} special tokens",
            mend=f"take at least {least}",
        )


def _sort_out(folder: Path) -> tuple[tuple[Path, ...], tuple[Skipped, ...]]:
    if not folder.is_dir():
        raise UserError("not a folder", where=str(folder))
    files, skipped = [], []
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and not _hidden(path, folder)):
        reason = _why_not_text(file)
        if reason:
            skipped.append(Skipped(file, reason))
        else:
            files.append(file)
    if not files:
        left_out = f" ({len(skipped)} skipped, the first because it is {skipped[0].reason})" if skipped else ""
        raise UserError(f"no text files to learn from{left_out}", where=str(folder), mend="put UTF-8 text there")
    return tuple(files), tuple(skipped)


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _why_not_text(file: Path) -> str:
    """The reason to skip a file, or nothing. Read to its end beforehand: half a file must not be learned from."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    characters = 0
    try:
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                if b"\0" in chunk:
                    return "binary"
                characters += len(decoder.decode(chunk))
            decoder.decode(b"", final=True)
    except OSError as error:
        return f"unreadable: {error.strerror}"
    except UnicodeDecodeError:
        return "not UTF-8"
    return "" if characters else "empty"


def _pieces(file: Path) -> Iterator[str]:
    with file.open(encoding="utf-8", newline="") as stream:
        while piece := stream.read(_CHUNK):
            yield piece
