"""What the generation loop needs of a model: read the prompts, then take one token a row at a time.

A session holds what a model remembers of a batch: a decoder its keys and values, an encoder-decoder those of the target
and of the source, a recurrent model its state. The loop, the sampler, the stop rules and beam search know nothing else.

Legend: B rows, T prompt tokens, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from intaglio.engine.blocks import GONE, BlockPool
from intaglio.engine.cache import ContiguousCache
from intaglio.engine.paged import Chunk, PagedMemory, windows_of
from intaglio.engine.runner import Runner
from intaglio.models.decoder import Decoder
from intaglio.models.encoder_decoder import EncoderDecoder
from intaglio.models.heads import lasts_of
from intaglio.models.recurrent import RecurrentModel
from intaglio.models.seq2seq import Seq2Seq
from intaglio.parts.memory import Kept
from intaglio.parts.recurrent import State

__all__ = [
    "DecoderSession",
    "EncoderDecoderSession",
    "RecurrentSession",
    "Seq2SeqSession",
    "Session",
    "right_padded",
    "session_class",
]

_BLOCK_SIZE = 16


class Session(Protocol):
    """One batch while it grows; made of a model and of the tokens each row may take at most."""

    continues: ClassVar[bool]
    """Whether what is made continues the prompt in one context; else it is a text of its own, a translation say."""

    def __init__(self, model: Any, max_tokens: Sequence[int]) -> None: ...

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Reads the prompts, none of them empty: the logits (B, V) of each row's first new token."""

    def step(self, ids: Tensor) -> Tensor:
        """Takes the next token of each row, (B,): the logits (B, V) of the one after it."""

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was; a row may be taken more than once, or not at all."""


class DecoderSession:
    """A decoder over paged blocks: rows without padding, and those that begin alike share blocks until they part.

    The engine is for texts that come and go; this is for rows that go on together and are reordered, as beams are.
    """

    continues: ClassVar[bool] = True

    def __init__(self, model: Decoder, max_tokens: Sequence[int]) -> None:
        self._model, self._max_tokens = model, max_tokens
        self._memory: PagedMemory | None = None

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """See `Session`."""
        self._planned = [len(prompt) + new for prompt, new in zip(prompts, self._max_tokens, strict=True)]
        self._longest = max(self._planned)
        windows = windows_of(self._model.spec, self._longest)
        self._pools = [BlockPool(1, _BLOCK_SIZE, window) for window in windows]
        self._tables: list[list[list[int]]] = [[[] for _ in windows] for _ in prompts]  # of each row, of each group
        self._used = [0] * len(prompts)
        self._make_room(len(prompts))
        return self._forward(prompts)

    def step(self, ids: Tensor) -> Tensor:
        """See `Session`."""
        return self._forward([[token] for token in ids.tolist()])

    def reorder(self, rows: Tensor) -> None:
        """See `Session`."""
        order, before = rows.tolist(), self._tables
        if len(order) > len(before):
            self._make_room(len(order))
        self._tables = [[list(table) for table in before[row]] for row in order]
        self._used, self._planned = [self._used[row] for row in order], [self._planned[row] for row in order]
        for pool, block in self._named(self._tables):
            pool.share(block)
        for pool, block in self._named(before):
            pool.release(block)

    def _named(self, rows: list[list[list[int]]]) -> Iterator[tuple[BlockPool, int]]:
        """Each block as often as a table names it."""
        for tables in rows:
            for pool, table in zip(self._pools, tables, strict=True):
                yield from ((pool, block) for block in table if block != GONE)

    def _make_room(self, rows: int) -> None:
        """Pools and memory for so many rows; what is held already stays where it is."""
        held = self._memory
        self._pools = [_larger(pool, rows * pool.peak(self._longest, self._longest)) for pool in self._pools]
        weight, blocks = self._model.embed_tokens.weight, [pool.num_blocks for pool in self._pools]
        self._memory = memory = PagedMemory(
            self._model.spec, blocks, _BLOCK_SIZE, self._longest, dtype=weight.dtype, device=weight.device
        )
        if held:
            for new, old in zip(memory.tensors(), held.tensors(), strict=True):
                new[: len(old)] = old
        self._runner = Runner(self._model, memory)

    def _forward(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        """Takes the next tokens of each row: the logits after the last of them, (B, V)."""
        chunks = [self._chunk(row, new) for row, new in enumerate(tokens)]
        hidden = self._runner.hidden_states(chunks)  # (N, E)
        self._used = [chunk.end for chunk in chunks]
        for tables, used in zip(self._tables, self._used, strict=True):
            for pool, table in zip(self._pools, tables, strict=True):
                pool.give_back(table, used)
        return self._runner.logits(hidden[lasts_of([len(new) for new in tokens]).to(hidden.device)])

    def _chunk(self, row: int, tokens: Sequence[int]) -> Chunk:
        start = min(self._used[row], self._planned[row] - 1)  # a row that has finished stays at its last place
        for group, (pool, table) in enumerate(zip(self._pools, self._tables[row], strict=True)):
            copy = pool.grow(table, start, start + len(tokens))
            if copy:
                self._runner.memory.copy(group, *copy)
        return Chunk(tokens, start, self._tables[row], self._planned[row])


def _larger(pool: BlockPool, num_blocks: int) -> BlockPool:
    """A pool of `num_blocks` blocks, of which the first are as they are in `pool`."""
    larger = BlockPool(num_blocks, pool.block_size, pool.window)
    for block in [larger.allocate() for _ in range(pool.num_blocks)]:  # 0, 1, 2, ...
        for _ in range(pool.references(block)):
            larger.share(block)
        larger.release(block)
    return larger


class EncoderDecoderSession:
    """The prompt is the source; the target begins with the start token. Keys and values of both sides are kept."""

    continues: ClassVar[bool] = False

    def __init__(self, model: EncoderDecoder, max_tokens: Sequence[int]) -> None:
        self._model, self._max_tokens = model, max_tokens

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """See `Session`."""
        spec, weight = self._model.spec, self._model.encoder.embed_tokens.weight
        self._memory = Kept(self._model.encode(*right_padded(prompts, weight.device)))
        self._cache = ContiguousCache(
            spec.decoder, len(prompts), max(self._max_tokens), dtype=weight.dtype, device=weight.device
        )
        return self.step(torch.full((len(prompts),), spec.start_token_id, device=weight.device))

    def step(self, ids: Tensor) -> Tensor:
        """See `Session`."""
        place = ids.new_full((len(ids), 1), self._cache.used)
        hidden = self._model.advance(ids[:, None], place, self._cache, self._memory)[:, -1]  # (B, E)
        return self._model.logits(hidden)

    def reorder(self, rows: Tensor) -> None:
        """See `Session`."""
        self._memory.reorder(rows)
        self._cache.reorder(rows)


class RecurrentSession:
    """A recurrent model remembers its state alone: the same memory however long a text becomes."""

    continues: ClassVar[bool] = True
    _state: State

    def __init__(self, model: RecurrentModel, max_tokens: Sequence[int]) -> None:
        self._model = model

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """See `Session`."""
        ids, lengths = right_padded(prompts, self._model.embed_tokens.weight.device)
        return self._forward(*self._model.hidden_states(ids, lengths=lengths))

    def step(self, ids: Tensor) -> Tensor:
        """See `Session`."""
        return self._forward(*self._model.hidden_states(ids[:, None], self._state))

    def reorder(self, rows: Tensor) -> None:
        """See `Session`."""
        self._state = tuple(part[:, rows] for part in self._state)

    def _forward(self, outputs: Tensor, state: State) -> Tensor:
        self._state = state
        return self._model.logits(state[0][-1])  # the last layer's, at each row's own last token


class Seq2SeqSession:
    """The prompt is the source; the target begins with the start token. Its state and the source are kept."""

    continues: ClassVar[bool] = False

    def __init__(self, model: Seq2Seq, max_tokens: Sequence[int]) -> None:
        self._model = model

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """See `Session`."""
        device = next(self._model.parameters()).device
        self._memory = self._model.encode(*right_padded(prompts, device))
        self._state = self._memory.state
        return self.step(torch.full((len(prompts),), self._model.spec.start_token_id, device=device))

    def step(self, ids: Tensor) -> Tensor:
        """See `Session`."""
        logits, self._state, _ = self._model.step(ids, self._state, self._memory)
        return logits

    def reorder(self, rows: Tensor) -> None:
        """See `Session`."""
        self._memory = self._memory.take(rows)
        self._state = tuple(part[:, rows] for part in self._state)


def session_class(model: Any) -> type[Session]:
    """The kind of session that `model` generates in."""
    kinds: list[tuple[type, type[Session]]] = [
        (Decoder, DecoderSession),
        (EncoderDecoder, EncoderDecoderSession),
        (RecurrentModel, RecurrentSession),
        (Seq2Seq, Seq2SeqSession),
    ]
    return next(session for kind, session in kinds if isinstance(model, kind))


def right_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids (B, T) and lengths (B,); padding on the right."""
    longest = max(map(len, prompts))
    ids = [list(prompt) + [0] * (longest - len(prompt)) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor([len(prompt) for prompt in prompts], device=device)
