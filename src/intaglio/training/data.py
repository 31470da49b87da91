"""A recipe's data: rows to examples, held-out ones apart, and what became of every row."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from intaglio.data.datasets import is_data_set, pull_data
from intaglio.data.encoding import Encoder, add_counts
from intaglio.data.examples import Counts
from intaglio.data.formats import Sample, detect, to_sample
from intaglio.data.mixture import Mixture, Part
from intaglio.data.readers import read_rows
from intaglio.data.splitting import split
from intaglio.data.store import InMemory, Store, View
from intaglio.data.token_store import TokenStore
from intaglio.errors import UserError
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.labelled import Label, Labels, encode_labelled, texts_of
from intaglio.training.recipe import ClassifierSpec, Recipe, SourceSpec

__all__ = ["Data", "read_data", "samples_of", "sources_of", "texts_to_learn_from"]


@dataclass(frozen=True)
class Data:
    """What a run learns from and is measured on.

    Attributes:
        train: every source but its held-out rows.
        validation: the held-out rows of all sources; empty where nothing is held out.
        counts: what became of the rows.
        removed: held-out rows left out because training contains them too.
        labels: of every row, where a classifier learns them.
    """

    train: Mixture
    validation: Store
    counts: Counts
    removed: int
    labels: Labels | None = None


def read_data(recipe: Recipe, tokenizer: Tokenizer, say: Callable[[str], None] = lambda line: None) -> Data:
    """Encodes every source and holds its share out.

    Raises:
        UserError: nothing there, a row of no known format, or nothing left to learn from.
    """
    counts = Counts()
    parts, held_out, removed = [], [], 0
    found: dict[str, Label] = {}
    for source in sources_of(recipe):
        store = _store(source, recipe, tokenizer, counts, found, say)
        if recipe.validation:
            sides = split(store, recipe.validation, recipe.split_by, recipe.near_duplicates)
            store, removed = sides.train, removed + sides.removed
            held_out.append(sides.validation)
        parts.append(Part(store, source.weight, source.cap))
    labels = Labels.of(found, recipe.objective.labels) if isinstance(recipe.objective, ClassifierSpec) else None
    return Data(Mixture(parts), View.joined(held_out), counts, removed, labels)


def sources_of(recipe: Recipe) -> tuple[SourceSpec, ...]:
    """The recipe's sources; a bare path is one."""
    return (SourceSpec(path=recipe.data),) if isinstance(recipe.data, str) else recipe.data


def texts_to_learn_from(recipe: Recipe) -> Iterator[str]:
    """What the rows say, for a tokenizer.

    Raises:
        UserError: see `read_data`.
    """
    for source in sources_of(recipe):
        if isinstance(recipe.objective, ClassifierSpec):
            yield from texts_of(read_rows(located(source.path)))
        else:
            yield from (sample.text or "" for sample in samples_of(source))


def samples_of(source: SourceSpec) -> Iterator[Sample]:
    """The rows of a source, each in its own format.

    Raises:
        UserError: nothing there, or a row of no known format.
    """
    for row in read_rows(located(source.path)):
        yield to_sample(row, detect(row))


def located(path: str, say: Callable[[str], None] = lambda line: None) -> str | Path:
    """The path as it is, or the rows of the data set of that name, pulled if need be."""
    if Path(path).exists() or not is_data_set(path):
        return path
    return pull_data(path, say=say) / "rows.jsonl"


def _store(
    source: SourceSpec,
    recipe: Recipe,
    tokenizer: Tokenizer,
    counts: Counts,
    found: dict[str, Label],
    say: Callable[[str], None],
) -> Store:
    """The source's examples; the labels of a classifier's go into `found`, by the place of their row."""
    if not isinstance(recipe.objective, ClassifierSpec):
        return _encoded(source, recipe, tokenizer, counts, say)
    rows, delimiter = read_rows(located(source.path, say)), recipe.objective.delimiter
    pairs = list(encode_labelled(rows, tokenizer, counts, recipe.max_length, recipe.over_long, delimiter))
    if not pairs:
        raise UserError(f"no row fits into {recipe.max_length} tokens", where=source.path)
    found.update({example.where: label for example, label in pairs})
    return InMemory([example for example, _ in pairs])


def _encoded(
    source: SourceSpec, recipe: Recipe, tokenizer: Tokenizer, counts: Counts, say: Callable[[str], None]
) -> TokenStore:
    """The source's tokens, from the store on disk where the same files were encoded before."""
    limit = None if recipe.packing == "contiguous" else recipe.max_length  # contiguous rows cut documents themselves
    encoder = Encoder(tokenizer, recipe.supervise, max_length=limit, over_long=recipe.over_long)
    store = TokenStore.build(located(source.path, say), encoder)
    add_counts(counts, store.counts)
    formats = ", ".join(f"{count} {name}" for name, count in store.formats.items())
    say(f"{source.path}: {formats}; {store.num_tokens:,} tokens, {store.num_supervised:,} of them targets")
    if store.num_skipped:
        where, reason = store.skipped[0]
        say(f"{source.path}: {store.num_skipped} skipped, first {where}: {reason}")
    return store
