"""Tokenizers whose tokens are whole characters, or whole words: made by counting, with `<unk>` for all else."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

from intaglio.text.tokenizer import Tokenizer

__all__ = ["characters_of", "words_of"]

SPECIAL: Final = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<sos>", "eos_token": "<eos>"}
"""What every one of them has; the first ids, in this order."""


def characters_of(texts: Iterable[str], vocab_size: int | None = None) -> Tokenizer:
    """A token for each character of `texts`, or for as many of the most frequent as `vocab_size` leaves room for."""
    backend = _backend(Counter(character for text in texts for character in text), vocab_size)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return Tokenizer(backend, SPECIAL)


def words_of(texts: Iterable[str], vocab_size: int | None = None) -> Tokenizer:
    """A token for each of the most frequent words of `texts`, that is of what stands between white space.

    White space is not kept: the text of ids has one space between words.
    """
    backend = _backend(Counter(word for text in texts for word in text.split()), vocab_size)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend, SPECIAL)


def _backend(counts: Counter[str], vocab_size: int | None) -> tokenizers.Tokenizer:
    """Ids by frequency, equal ones in the order of the units, so that equal texts give equal tokenizers."""
    special = list(SPECIAL.values())
    units = sorted((unit for unit in counts if unit not in special), key=lambda unit: (-counts[unit], unit))
    kept = units if vocab_size is None else units[: vocab_size - len(special)]
    vocabulary = {unit: number for number, unit in enumerate([*special, *kept])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL["unk_token"]))
    backend.add_special_tokens(special)
    return backend
