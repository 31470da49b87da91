"""A recipe's data: rows to examples, held-out ones apart, and what became of every row."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from intaglio.errors import UserError
from intaglio.files import home
from intaglio.text.examples import Counts, MaskPolicy, encode_samples
from intaglio.text.formats import Sample, detect, to_sample
from intaglio.text.mixture import Mixture, Part
from intaglio.text.readers import read_rows
from intaglio.text.splitting import split
from intaglio.text.store import InMemory, Store, View
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.recipe import Recipe, SourceSpec

__all__ = ["Data", "read_data", "samples_of"]


@dataclass(frozen=True)
class Data:
    """What a run learns from and is measured on.

    Attributes:
        train: every source but its held-out rows.
        validation: the held-out rows of all sources; empty where nothing is held out.
        counts: what became of the rows.
        removed: held-out rows left out because training contains them too.
    """

    train: Mixture
    validation: Store
    counts: Counts
    removed: int


def read_data(recipe: Recipe, tokenizer: Tokenizer) -> Data:
    """Encodes every source and holds its share out.

    Raises:
        UserError: nothing there, a row of no known format, or nothing left to learn from.
    """
    counts = Counts()
    parts, held_out, removed = [], [], 0
    for source in sources_of(recipe):
        store = _encode(source, recipe, tokenizer, counts)
        if recipe.validation:
            sides = split(store, recipe.validation, recipe.split_by, recipe.near_duplicates)
            store, removed = sides.train, removed + sides.removed
            held_out.append(sides.validation)
        parts.append(Part(store, source.weight, source.cap))
    return Data(Mixture(parts), _joined(held_out), counts, removed)


def sources_of(recipe: Recipe) -> tuple[SourceSpec, ...]:
    """The recipe's sources; a bare path is one."""
    return (SourceSpec(path=recipe.data),) if isinstance(recipe.data, str) else recipe.data


def samples_of(source: SourceSpec) -> Iterator[Sample]:
    """The rows of a source, in the format the first one has.

    Raises:
        UserError: nothing there, or a row that does not fit.
    """
    rows = read_rows(_located(source.path))
    first = next(rows, None)
    if first is None:
        raise UserError("there are no rows", where=source.path)
    format = detect(first)
    yield to_sample(first, format)
    for row in rows:
        yield to_sample(row, format)


def _located(path: str) -> str | Path:
    """A pulled data set's folder, or the path as it is."""
    pulled = home() / "data" / path
    return pulled if not Path(path).exists() and pulled.is_dir() else path


def _encode(source: SourceSpec, recipe: Recipe, tokenizer: Tokenizer, counts: Counts) -> Store:
    limit = None if recipe.packing == "contiguous" else recipe.max_length  # contiguous rows cut documents themselves
    policy = MaskPolicy(supervise=recipe.supervise)
    mine = Counts()
    examples = list(encode_samples(samples_of(source), tokenizer, policy, mine, limit, recipe.over_long))
    for field in fields(Counts):
        setattr(counts, field.name, getattr(counts, field.name) + getattr(mine, field.name))
    if not examples:
        raise UserError(f"none of {mine.read} rows has a token to learn within {recipe.max_length}", where=source.path)
    return InMemory(examples)


def _joined(views: list[View]) -> Store:
    return InMemory([view[i] for view in views for i in range(len(view))])
