"""Rows of comparisons and judgements become documents that fork, in memory, and streams of micro-batches of them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product

import numpy as np

from intaglio.data.examples import Counts, Example, MaskPolicy, OverLong
from intaglio.data.packing import Method
from intaglio.data.preference_encoding import encode_judged, encode_preference, fitting
from intaglio.data.preferences import Judged, answers_of, judged_of, preferences_of, words_of
from intaglio.data.readers import Row
from intaglio.data.splitting import Split, held_out_prompts
from intaglio.data.store import InMemory, Source, Store, View
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.batching.batches import AnnotatedStream, Batch, evaluation_documents
from intaglio.training.batching.forks import ForkedBatch, ForkedExample, forked

__all__ = [
    "ForkStream",
    "compares_chats",
    "forked_documents",
    "judged_examples",
    "pair_examples",
    "paired_examples",
    "said_in",
    "split_by_prompt",
]

Make = Callable[[Sequence[ForkedExample]], ForkedBatch]


def pair_examples(
    rows: Iterable[Row], tokenizer: Tokenizer, counts: Counts, max_length: int, over_long: OverLong
) -> list[ForkedExample]:
    """The pairs of all rows, those of rankings too; `counts` says what became of them.

    Raises:
        UserError: see `preferences_of` and `encode_preference`.
    """
    policy = MaskPolicy()
    pairs = (encode_preference(pair, tokenizer, policy) for row in rows for pair in preferences_of(row))
    return [forked(pair) for pair in fitting(pairs, counts, max_length, over_long)]


def judged_examples(
    rows: Iterable[Row], tokenizer: Tokenizer, counts: Counts, max_length: int, over_long: OverLong
) -> list[ForkedExample]:
    """The judged answers of all rows; of a pair the chosen one was wanted and the rejected one was not, and so of a
    ranking's pairs.

    Raises:
        UserError: see `judged_of` and `encode_judged`.
    """
    policy = MaskPolicy()
    judged = (encode_judged(one, tokenizer, policy) for row in rows for one in _judged(row))
    return [forked(one) for one in fitting(judged, counts, max_length, over_long)]


def _judged(row: Row) -> Iterator[Judged]:
    if isinstance(row.value, str) or not {"chosen", "answers"} & row.value.keys():
        yield judged_of(row)
        return
    for pair in preferences_of(row):
        yield Judged(pair.where, pair.prompt, pair.chosen, True, pair.tools)
        yield Judged(pair.where, pair.prompt, pair.rejected, False, pair.tools)


def said_in(rows: Iterable[Row]) -> Iterator[str]:
    """All that rows of comparisons, judgements or prompts say, for a tokenizer to learn from; a chat by its messages.

    Raises:
        UserError: see `answers_of`.
    """
    for row in rows:
        prompt, answers = answers_of(row)
        yield from map(words_of, (prompt, *answers.values()))


def compares_chats(rows: Iterable[Row]) -> bool:
    """Whether the first row is of messages."""
    first = next(iter(rows), None)
    answers = [] if first is None else list(_judged(first))
    return any(not isinstance(one.completion, str) for one in answers)


def split_by_prompt(store: Store, share: float) -> Split:
    """Holds out about `share` of the examples; all those of one prompt are on one side.

    Raises:
        UserError: see `held_out_prompts`.
    """
    outside = held_out_prompts([_forked(store[i]).prompt for i in range(len(store))], share)
    return Split(View.of(store, np.flatnonzero(~outside)), View.of(store, np.flatnonzero(outside)), 0)


class ForkStream(AnnotatedStream):
    """A `BatchStream` of documents that fork.

    Args:
        source, annotate, micro_batch, packing, seed: see `AnnotatedStream`.
        room: tokens of a row.
        make: a micro-batch of the examples of its rows.
    """

    def __init__(
        self,
        source: Source | Store,
        make: Make,
        annotate: Callable[[list[Batch]], Sequence[Batch]],
        micro_batch: int,
        room: int,
        packing: Method,
        seed: int = 0,
    ) -> None:
        self._make = make
        super().__init__(source, annotate, micro_batch, room, packing, seed)

    def _made(self, examples: Sequence[Example]) -> Batch:
        return self._make([_forked(example) for example in examples])


def paired_examples(store: Store) -> InMemory:
    """Pairs of judged answers: to each prompt every one that was wanted beside every one that was not.

    Of the two the first says where the pair stands.
    """
    prompts: dict[bytes, tuple[list[ForkedExample], list[ForkedExample]]] = {}
    for example in (_forked(store[i]) for i in range(len(store))):
        prompts.setdefault(example.prompt.tobytes(), ([], []))[not example.desirable].append(example)
    return InMemory([_pair(*both) for sides in prompts.values() for both in product(*sides)])


def _pair(chosen: ForkedExample, rejected: ForkedExample) -> ForkedExample:
    """One prompt, and both answers behind it."""
    (length, wanted), (_, unwanted) = chosen.fork, rejected.fork
    ids = np.concatenate((chosen.ids, rejected.ids[length:]))
    scored = np.concatenate((chosen.supervised, rejected.supervised[length:]))
    return ForkedExample(ids, scored, chosen.where, (length, wanted, unwanted))


def forked_documents(store: Store, micro_batch: int, room: int, packing: Method) -> Iterator[list[ForkedExample]]:
    """Every example of `store` once, as those that share a micro-batch."""
    for examples in evaluation_documents(store, micro_batch, room, packing):
        yield [_forked(example) for example in examples]


def _forked(example: Example) -> ForkedExample:
    assert isinstance(example, ForkedExample)
    return example
