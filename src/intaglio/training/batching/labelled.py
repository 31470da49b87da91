"""Rows with a label: what a classifier reads, and the micro-batches it learns from.

A row has `text` and `label` (a text or a whole number), and `text_pair` where two texts are judged together: then the
first, the delimiter and the second follow each other (Radford et al. 2018, section 3.3). EOS ends the example, and the
label is read there; an example that is too long loses text, never its end.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from intaglio.data.examples import Counts, Example, OverLong
from intaglio.data.readers import Row
from intaglio.errors import UserError, nearest
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.batching.batches import Batch

__all__ = ["Label", "LabelledBatch", "Labels", "encode_labelled", "labelled_batches", "texts_of"]

Label = str | int


@dataclass(frozen=True)
class Labels:
    """The classes of a run.

    Attributes:
        names: in the order of the scores.
        numbers: the place of a row -> which of the names is its label.
    """

    names: tuple[str, ...]
    numbers: Mapping[str, int]

    @classmethod
    def of(cls, found: Mapping[str, Label], names: Sequence[Label] = ()) -> "Labels":
        """Labels by the place of their row; without `names` those that occur, in order (numbers by size).

        Raises:
            UserError: a label that is not among the names, or fewer than two names.
        """
        chosen = list(names) or _in_order(set(found.values()))
        order = {str(name): number for number, name in enumerate(chosen)}
        if len(order) < 2 or len(order) != len(chosen):
            raise UserError(f"a classifier needs two or more different labels, and these are {chosen}", where="labels")
        for where, label in found.items():
            if str(label) not in order:
                raise UserError(f"unknown label {label!r}", where=where, mend=nearest(str(label), order))
        return cls(tuple(order), {where: order[str(label)] for where, label in found.items()})


@dataclass(frozen=True)
class LabelledBatch(Batch):
    """A micro-batch of documents with a class each; its targets are the documents.

    Attributes:
        classes: (documents,) int64.
        lm_share: documents for each next-token target, over the whole optimizer step. The loop divides by the step's
            documents, so a sum over next-token targets times this becomes their mean.
    """

    classes: torch.Tensor
    lm_share: float


def labelled_batches(batches: Sequence[Batch], labels: Labels) -> list[LabelledBatch]:
    """The batches of one optimizer step, or of one evaluation, with the labels of their documents."""
    documents = sum(len(batch.documents) for batch in batches)
    share = documents / max(sum(batch.num_targets for batch in batches), 1)
    return [_labelled(batch, labels, share) for batch in batches]


def _labelled(batch: Batch, labels: Labels, share: float) -> LabelledBatch:
    known = {field.name: getattr(batch, field.name) for field in fields(Batch)}
    classes = torch.tensor([labels.numbers[where] for where in batch.wheres])
    return LabelledBatch(**{**known, "num_targets": len(classes)}, classes=classes, lm_share=share)


def encode_labelled(
    rows: Iterable[Row],
    tokenizer: Tokenizer,
    counts: Counts,
    max_length: int,
    over_long: OverLong = "truncate",
    delimiter: str = "$",
) -> Iterator[tuple[Example, Label]]:
    """Examples of which every token but the first is a target, and their labels; `counts` says what became of rows.

    Raises:
        UserError: a row without text or label; names it and the key.
    """
    separator = tokenizer.encode(delimiter, add_special_tokens=False)
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    for row in rows:
        texts, label = _fields(row)
        parts = [_ids(text, tokenizer, begins=number == 0) for number, text in enumerate(texts)]
        between = separator if len(parts) > 1 else []
        kept = _cut(parts, max(max_length - len(between) - len(end), 0))
        counts.read += 1
        if kept != parts and over_long == "drop":
            counts.dropped_long += 1
            continue
        counts.truncated += kept != parts
        counts.kept += 1
        ids = np.array([*kept[0], *between, *(kept[1] if between else ()), *end], dtype=np.int32)
        yield Example(ids, np.arange(len(ids)) > 0, row.where), label


def texts_of(rows: Iterable[Row]) -> Iterator[str]:
    """All that labelled rows say, for a tokenizer to learn from."""
    for row in rows:
        yield from _fields(row)[0]


def _fields(row: Row) -> tuple[list[str], Label]:
    value: Mapping[str, Any] = {} if isinstance(row.value, str) else row.value
    texts = [value.get("text"), *([value["text_pair"]] if value.get("text_pair") is not None else [])]
    if not all(isinstance(text, str) and text for text in texts):
        raise UserError("a row of a classification set needs a text", where=f"{row.where}: text")
    label = value.get("label")
    if not isinstance(label, (str, int)):
        raise UserError("a row of a classification set needs a label", where=f"{row.where}: label")
    return texts, label


def _ids(text: str, tokenizer: Tokenizer, begins: bool) -> list[int]:
    """Without the EOS that some tokenizers add: it stands behind the last text."""
    ids = tokenizer.encode_batch([text], add_special_tokens=begins)[0]
    return ids[:-1] if ids[-1:] == [tokenizer.eos_token_id] else ids


def _cut(parts: list[list[int]], room: int) -> list[list[int]]:
    """The beginnings of one or two texts; of two the longer one gives way."""
    if sum(map(len, parts)) <= room:
        return parts
    if len(parts) == 1:
        return [parts[0][:room]]
    second = min(len(parts[1]), max(room // 2, room - len(parts[0])))
    return [parts[0][: room - second], parts[1][:second]]


def _in_order(labels: set[Label]) -> list[Label]:
    numbers = all(isinstance(label, int) for label in labels)
    return sorted(labels, key=int if numbers else str)
