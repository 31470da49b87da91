"""A recipe's data: rows to examples, held-out ones apart, and what became of every row."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from intaglio.data.datasets import data_rows, is_data_set
from intaglio.data.encoding import Encoder, add_counts
from intaglio.data.examples import Counts, Example
from intaglio.data.formats import Sample, detect, to_sample
from intaglio.data.mixture import Mixture, Part
from intaglio.data.preference_encoding import PromptExample
from intaglio.data.readers import read_rows
from intaglio.data.splitting import Split, split
from intaglio.data.store import InMemory, Source, Store, View
from intaglio.data.streaming import Streamed
from intaglio.data.token_store import TokenStore
from intaglio.data.turns import text_of
from intaglio.errors import UserError
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.batching.labelled import Labels, encode_labelled, texts_of
from intaglio.training.batching.pairs import checked_pairs
from intaglio.training.batching.preferences import judged_examples, pair_examples, said_in, split_by_prompt
from intaglio.training.batching.prompts import prompt_rows
from intaglio.training.batching.streams import WithoutHeldOut, first_held_out
from intaglio.training.batching.tagged import Tags, encode_tagged, words_of
from intaglio.training.objectives.specs import (
    ClassifierSpec,
    GRPOSpec,
    KTOSpec,
    PPOSpec,
    PreferenceSpec,
    Seq2SeqSpec,
    TaggerSpec,
)
from intaglio.training.recipe import Recipe, SourceSpec

__all__ = ["Data", "read_data", "samples_of", "sources_of", "texts_to_learn_from"]


@dataclass(frozen=True)
class Data:
    """What a run learns from and is measured on.

    Attributes:
        train: every source but its held-out rows.
        validation: the held-out rows of all sources; empty where nothing is held out.
        counts: what became of the rows; of those read so far, where they are streamed.
        removed: held-out rows left out because training contains them too.
        labels: of every row, where a classifier learns them.
        tags: of every row, where a tagger learns them.
        prompts: of every row, where a policy answers them.
        text: what is learned beside the rows, see `PlainTextSpec`.
    """

    train: Source
    validation: Store
    counts: Counts
    removed: int
    labels: Labels | None = None
    tags: Tags | None = None
    prompts: Mapping[str, PromptExample] | None = None
    text: Source | None = None


def read_data(recipe: Recipe, tokenizer: Tokenizer, say: Callable[[str], None] = lambda line: None) -> Data:
    """Encodes every source and holds its share out.

    Raises:
        UserError: nothing there, a row of no known format, or nothing left to learn from.
    """
    if recipe.streaming:
        return _streamed(recipe, tokenizer, say)
    counts = Counts()
    parts, held_out, removed = [], [], 0
    found: dict[str, Any] = {}
    for source in sources_of(recipe):
        store = _store(source, recipe, tokenizer, counts, found, say)
        if recipe.validation:
            sides = _split(store, recipe)
            store, removed = sides.train, removed + sides.removed
            held_out.append(sides.validation)
        parts.append(Part(store, source.weight, source.cap))
    labels = Labels.of(found, recipe.objective.labels) if isinstance(recipe.objective, ClassifierSpec) else None
    tags = Tags.of(found, recipe.objective.tags) if isinstance(recipe.objective, TaggerSpec) else None
    prompts = found if isinstance(recipe.objective, PPOSpec | GRPOSpec) else None
    text = _text_beside(recipe, tokenizer, say)
    return Data(Mixture(parts), View.joined(held_out), counts, removed, labels, tags, prompts, text)


def _split(store: Store, recipe: Recipe) -> Split:
    """Both sides of a source; comparisons of one prompt are on one side."""
    if isinstance(recipe.objective, PreferenceSpec):
        return split_by_prompt(store, recipe.validation)
    return split(store, recipe.validation, recipe.split_by, recipe.near_duplicates)


def _text_beside(recipe: Recipe, tokenizer: Tokenizer, say: Callable[[str], None]) -> Source | None:
    """The plain text of PPO-ptx, every row of it."""
    ptx = getattr(recipe.objective, "ptx", None)
    if ptx is None:
        return None
    plain = Recipe(model="policy", data=ptx.data, validation=0, max_length=ptx.max_length, steps=1)
    return read_data(plain, tokenizer, say).train


def sources_of(recipe: Recipe) -> tuple[SourceSpec, ...]:
    """The recipe's sources; a bare path is one."""
    return (SourceSpec(path=recipe.data),) if isinstance(recipe.data, str) else recipe.data


def texts_to_learn_from(recipe: Recipe) -> Iterator[str]:
    """What the rows say, for a tokenizer.

    Raises:
        UserError: see `read_data`.
    """
    for source in sources_of(recipe):
        match recipe.objective:
            case ClassifierSpec():
                yield from texts_of(read_rows(located(source.path)))
            case TaggerSpec():
                yield from words_of(read_rows(located(source.path)))
            case Seq2SeqSpec():
                yield from (text for pair in checked_pairs(samples_of(source)) for text in pair)
            case PreferenceSpec() | PPOSpec() | GRPOSpec():
                yield from said_in(read_rows(located(source.path)))
            case _:
                yield from (text for sample in samples_of(source) for text in _said(sample))


def _said(sample: Sample) -> tuple[str, ...]:
    """All that a sample says; a chat by its messages."""
    if sample.kind == "tokens":
        what = "token ids, of which no tokenizer can be learned"
        raise UserError(what, where=sample.where, mend="name the tokenizer that made them")
    if sample.kind == "text":
        return (sample.text or "",)
    if isinstance(sample.prompt, str) and isinstance(sample.completion, str):
        return sample.prompt, sample.completion
    return tuple(map(text_of, sample.messages))


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
    return data_rows(path, say=say)


def _streamed(recipe: Recipe, tokenizer: Tokenizer, say: Callable[[str], None]) -> Data:
    (source,) = sources_of(recipe)
    streamed = Streamed(located(source.path, say), _encoder(recipe, tokenizer))
    validation = first_held_out(streamed, recipe.validation)
    return Data(WithoutHeldOut(streamed, recipe.validation), validation, streamed.counts, removed=0)


def _store(
    source: SourceSpec,
    recipe: Recipe,
    tokenizer: Tokenizer,
    counts: Counts,
    found: dict[str, Any],
    say: Callable[[str], None],
) -> Store:
    """The source's examples; the labels of a classifier's, the tags of a tagger's go into `found`, by their row."""
    rows = partial(read_rows, located(source.path, say))
    limits = counts, recipe.max_length, recipe.over_long
    match recipe.objective:
        case ClassifierSpec(delimiter=delimiter):
            return _learned(source, encode_labelled(rows(), tokenizer, *limits, delimiter), found)
        case TaggerSpec():
            return _learned(source, encode_tagged(rows(), tokenizer, *limits), found)
        case KTOSpec():
            return _kept(source, judged_examples(rows(), tokenizer, *limits))
        case PreferenceSpec():
            return _kept(source, pair_examples(rows(), tokenizer, *limits))
        case PPOSpec() | GRPOSpec() as spec:
            longest = recipe.max_length - spec.max_completion_length
            return _learned(source, prompt_rows(rows(), tokenizer, counts, longest), found)
        case Seq2SeqSpec():
            deque(checked_pairs(samples_of(source)), maxlen=0)
    return _encoded(source, recipe, tokenizer, counts, say)


def _learned(source: SourceSpec, pairs: Iterable[tuple[Example, Any]], found: dict[str, Any]) -> Store:
    """The examples in memory; what stands beside each goes into `found`."""
    kept = list(pairs)
    found.update({example.where: beside for example, beside in kept})
    return _kept(source, [example for example, _ in kept])


def _kept(source: SourceSpec, examples: Sequence[Example]) -> Store:
    """What fits, in memory."""
    if not examples:
        raise UserError("no row fits into max_length", where=source.path)
    return InMemory(examples)


def _encoded(
    source: SourceSpec, recipe: Recipe, tokenizer: Tokenizer, counts: Counts, say: Callable[[str], None]
) -> TokenStore:
    """The source's tokens, from the store on disk where the same files were encoded before."""
    store = TokenStore.build(located(source.path, say), _encoder(recipe, tokenizer))
    add_counts(counts, store.counts)
    formats = ", ".join(f"{count} {name}" for name, count in store.formats.items())
    say(f"{source.path}: {formats}; {store.num_tokens:,} tokens, {store.num_supervised:,} of them targets")
    if store.num_skipped:
        where, reason = store.skipped[0]
        say(f"{source.path}: {store.num_skipped} skipped, first {where}: {reason}")
    return store


def _encoder(recipe: Recipe, tokenizer: Tokenizer) -> Encoder:
    limit = None if recipe.packing == "contiguous" else recipe.max_length  # contiguous rows cut documents themselves
    return Encoder(tokenizer, recipe.supervise, max_length=limit, over_long=recipe.over_long)
