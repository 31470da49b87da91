"""Rows of tokens with a tag each, and the micro-batches that a tagger learns from."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from intaglio.data.examples import Counts, Example, OverLong
from intaglio.data.readers import Row
from intaglio.errors import UserError, nearest
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.batching.batches import Batch

__all__ = ["Tags", "encode_tagged", "tagged_batches", "words_of"]


@dataclass(frozen=True)
class Tags:
    """The classes of a run.

    Attributes:
        names: in the order of the scores.
        numbers: the place of a row -> which of the names each of its tags is, (L,) int64.
    """

    names: tuple[str, ...]
    numbers: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, found: Mapping[str, Sequence[str]], names: Sequence[str] = ()) -> "Tags":
        """Tags by the place of their row; without `names` those that occur, sorted.

        Raises:
            UserError: a tag that is not among the names.
        """
        chosen = tuple(names) or tuple(sorted({tag for tags in found.values() for tag in tags}))
        order = {name: number for number, name in enumerate(chosen)}
        for where, tags in found.items():
            unknown = next((tag for tag in tags if tag not in order), None)
            if unknown is not None:
                raise UserError(f"unknown tag {unknown!r}", where=where, mend=nearest(unknown, order))
        return cls(chosen, {where: np.array([order[tag] for tag in tags]) for where, tags in found.items()})


def tagged_batches(batches: Iterable[Batch], tags: Tags) -> list[Batch]:
    """The batches with tags as labels; every token is a target."""
    return [_tagged(batch, tags) for batch in batches]


def _tagged(batch: Batch, tags: Tags) -> Batch:
    labels = torch.from_numpy(np.concatenate([tags.numbers[where] for where in batch.wheres]))[None]
    return replace(batch, labels=labels, num_targets=labels.numel())


def encode_tagged(
    rows: Iterable[Row], tokenizer: Tokenizer, counts: Counts, max_length: int, over_long: OverLong = "truncate"
) -> Iterator[tuple[Example, list[str]]]:
    """Examples of one id for each of a row's tokens, and their tags; `counts` says what became of rows.

    Raises:
        UserError: a row without tokens and as many tags, or a token that is not one to the tokenizer.
    """
    for row in rows:
        tokens, tags = _fields(row)
        counts.read += 1
        if len(tokens) > max_length and over_long == "drop":
            counts.dropped_long += 1
            continue
        counts.truncated += len(tokens) > max_length
        counts.kept += 1
        ids = np.array([_id(token, tokenizer, row.where) for token in tokens[:max_length]], dtype=np.int32)
        yield Example(ids, np.ones(len(ids), dtype=np.bool_), row.where), tags[:max_length]


def words_of(rows: Iterable[Row]) -> Iterator[str]:
    """The tokens of each row with spaces between, for a tokenizer to be made of."""
    for row in rows:
        yield " ".join(_fields(row)[0])


def _fields(row: Row) -> tuple[list[str], list[str]]:
    value: Mapping[str, Any] = {} if isinstance(row.value, str) else row.value
    sides = [value.get(key) for key in ("tokens", "tags")]
    for key, side in zip(("tokens", "tags"), sides, strict=True):
        if not isinstance(side, list) or not side or not all(isinstance(one, str) and one for one in side):
            raise UserError(f"a row of a tagged set needs {key}, a list of texts", where=f"{row.where}: {key}")
    tokens, tags = sides
    assert tokens is not None
    assert tags is not None
    if len(tokens) != len(tags):
        raise UserError(f"{len(tokens)} tokens and {len(tags)} tags", where=row.where, mend="give each token a tag")
    return tokens, tags


def _id(token: str, tokenizer: Tokenizer, where: str) -> int:
    number = tokenizer.token_id(token)
    number = tokenizer.unk_token_id if number is None else number
    if number is None:
        mend = "take tokenizer: {kind: words, vocab_size: N}, which has <unk>"
        raise UserError(f"{token!r} is no token of this tokenizer", where=where, mend=mend)
    return number
