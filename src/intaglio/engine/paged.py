"""The paged K/V cache: memory in blocks that any sequence may hold, and attention that reads them by block table.

Legend: N tokens of a step, all sequences end to end; S sequences, n of them in one product; q tokens of one of them
that are new, L keys they look at; H query heads, K key/value heads, D head width.

A layer's keys lie slot by slot, (slots, K, D): token p of a sequence stands in slot p % size of block table[p // size]
(Kwon et al. 2023, arXiv 2309.06180, section 4). Layers with one window share a block table, since they forget alike:
that is a group, and all layers without a window are one too.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from intaglio import native
from intaglio.parts.context import Scores, attend, visible
from intaglio.specs import AttentionSpec, DecoderSpec, LatentAttentionSpec

__all__ = ["Chunk", "LayerTables", "PagedContext", "PagedMemory", "block_bytes", "windows_of"]

Slots = slice | Tensor


@dataclass(frozen=True)
class Chunk:
    """The new tokens of one sequence in one step.

    Attributes:
        tokens: their ids.
        start: how many of the sequence's tokens are in the cache already.
        tables: for each group the blocks of the sequence, those of the new tokens included; what lies behind a window
            may be any number.
        planned: tokens the sequence may have at most; what dynamic rotary scaling chooses its base by.
        adapter: the number of that under which they are computed, see `engine.adapted`; 0 for none.
    """

    tokens: Sequence[int]
    start: int
    tables: Sequence[Sequence[int]]
    planned: int
    adapter: int = 0

    @property
    def end(self) -> int:
        """Tokens in the cache after the step."""
        return self.start + len(self.tokens)


def windows_of(spec: DecoderSpec, max_model_len: int) -> list[int | None]:
    """The groups of a model's layers by their windows; one that no sequence can outgrow is none."""
    return list(dict.fromkeys(_bounded(block.attention.window, max_model_len) for block in spec.blocks))


def _bounded(window: int | None, max_model_len: int) -> int | None:
    return window if window is not None and window < max_model_len else None


def block_bytes(spec: DecoderSpec, block_size: int, max_model_len: int, dtype: torch.dtype) -> list[int]:
    """Bytes of a block of each group, in all its layers."""
    name = str(dtype).removeprefix("torch.")
    windows = windows_of(spec, max_model_len)
    taken = [0] * len(windows)
    for block in spec.blocks:
        group = windows.index(_bounded(block.attention.window, max_model_len))
        taken[group] += block_size * block.attention.kv_bytes_per_token(name)
    return taken


def _kept(attention: AttentionSpec | LatentAttentionSpec) -> list[tuple[int, int]]:
    """The shapes (K, D) of what is kept of a token."""
    if isinstance(attention, LatentAttentionSpec):
        return [(1, attention.latent_width)]
    return [(attention.kv_heads, attention.width)] * 2


class PagedMemory:
    """Keys and values of all layers.

    Args:
        spec: the decoder's.
        num_blocks: of each group.
        block_size: tokens in a block.
        max_model_len: of any sequence; decides which windows matter.
        dtype, device: of keys and values.

    Attributes:
        windows: of each group.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        num_blocks: Sequence[int],
        block_size: int,
        max_model_len: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.block_size, self._max_model_len = block_size, max_model_len
        self.windows = windows_of(spec, max_model_len)
        assert len(num_blocks) == len(self.windows), "each group has its own blocks"
        self._layers: list[list[Tensor]] = []  # keys and values, or latents alone
        self._groups: list[int] = []
        for block in spec.blocks:
            group = self.group_of(block.attention.window)
            slots = num_blocks[group] * block_size
            # never seen before they are written, so not cleared: memory is taken as it is used
            kept = [torch.empty(slots, *of_token, dtype=dtype, device=device) for of_token in _kept(block.attention)]
            self._layers.append(kept)
            self._groups.append(group)

    def group_of(self, window: int | None) -> int:
        """The group of a layer with this window."""
        return self.windows.index(_bounded(window, self._max_model_len))

    def tensors(self) -> Iterator[Tensor]:
        """What is held for every layer."""
        for layer in self._layers:
            yield from layer

    def kept(self, layer: int) -> list[Tensor]:
        """Keys and values, or latents alone, of a layer."""
        return self._layers[layer]

    def write(self, layer: int, slots: Slots, key: Tensor, value: Tensor | int) -> tuple[Tensor, Tensor]:
        """Stores keys and values (N, K, D), and returns all that the layer holds, (slots, K, D) each.

        A value that is a number says that the values are the first so many features of the keys.
        """
        memories = self._layers[layer]
        for memory, new in zip(memories, (key, value), strict=False):
            assert isinstance(new, Tensor)
            if isinstance(slots, slice):
                memory[slots] = new
            else:
                memory.index_copy_(0, slots, new)
        return memories[0], memories[0][..., :value] if isinstance(value, int) else memories[1]

    def copy(self, group: int, source: int, target: int) -> None:
        """What block `source` holds of the group's layers into block `target`."""
        size = self.block_size
        for layer, its_group in zip(self._layers, self._groups, strict=True):
            for memory in layer if its_group == group else ():
                memory[target * size : (target + 1) * size] = memory[source * size : (source + 1) * size]


@dataclass(frozen=True)
class LayerTables:
    """Where a step's keys and values of one layer are; see `native.layer_` for the shapes.

    Attributes:
        kept: keys and values.
        tables: slots of the new tokens, block table, query starts, lengths.
        block_size: tokens in a block.
    """

    kept: tuple[Tensor, Tensor]
    tables: tuple[Tensor, Tensor, Tensor, Tensor]
    block_size: int


class PagedContext:
    """One step's attention over a `PagedMemory`; an `AttentionContext` of one row, in which sequences lie end to end.

    Args:
        memory: where keys and values live.
        chunks: the sequences' new tokens; those of one sequence in order, if there are several.
        alone: whether no two sequences share a product, so that nothing can depend on who else is there.
        changed: layers whose parts must be called one by one, since something else changes what they make.
    """

    caches = True

    def __init__(
        self, memory: PagedMemory, chunks: Sequence[Chunk], *, alone: bool = False, changed: Container[int] = ()
    ) -> None:
        self._memory, self._chunks, self._alone, self._changed = memory, chunks, alone, changed
        self._groups: dict[int, _GroupStep] = {}
        self._device = next(memory.tensors()).device
        self.ids = self._row([token for chunk in chunks for token in chunk.tokens])
        self.positions = self._row([place for chunk in chunks for place in range(chunk.start, chunk.end)])

    def _row(self, values: list[int]) -> Tensor:
        return torch.tensor([values], device=self._device)  # (1, N)

    def begin(self, positions: Tensor) -> None:
        """See `AttentionContext`."""

    def planned(self, positions: Tensor) -> Tensor:
        """(1, N): each token of its own sequence."""
        planned = self._row([chunk.planned for chunk in self._chunks for _ in chunk.tokens])
        return torch.cat((planned, planned.new_ones(1, positions.shape[1] - planned.shape[1])), dim=1)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor | int, scores: Scores) -> Tensor:
        """See `AttentionContext`; rows behind the chunks' tokens are padding: they write nothing and get zeros."""
        step, real = self._group(self._memory.group_of(scores.window)), self.ids.shape[1]
        q, k = query[0].transpose(0, 1), key[0].transpose(0, 1)  # (N, H, D), (N, K, D)
        v = value if isinstance(value, int) else value[0].transpose(0, 1)
        if len(q) > real:
            q, k, v = q[:real], k[:real], v if isinstance(v, int) else v[:real]
        keys, values = self._memory.write(layer, step.written, k, v)
        out = step.attend(q, keys, values, scores)  # (N, H, Dv)
        if query.shape[2] > real:
            out = F.pad(out, (0, 0, 0, 0, 0, query.shape[2] - real))
        return out.transpose(0, 1)[None]

    def walk(self, layer: int, x: Tensor, scores: Scores) -> LayerTables | None:
        """What a native operator needs to do all of a layer by itself, or None where it cannot: for rows of padding,
        where no two sequences may share a product, or where an adapter changes the layer.

        Args:
            layer: as of `attend`.
            x: the layer's input, (1, N, E).
            scores: the layer's.
        """
        if self._alone or layer in self._changed or x.shape[1] > self.ids.shape[1]:
            return None
        step = self._group(self._memory.group_of(scores.window))
        keys, values = self._memory.kept(layer)
        return LayerTables((keys, values), (step.slots, *step.tables), self._memory.block_size)

    def _group(self, group: int) -> "_GroupStep":
        """What all layers of a group share is made once a step."""
        if group not in self._groups:
            tables = [chunk.tables[group] for chunk in self._chunks]
            window, size = self._memory.windows[group], self._memory.block_size
            self._groups[group] = _GroupStep(self._chunks, tables, window, size, self._alone, self._device)
        return self._groups[group]


@dataclass(frozen=True)
class _Product:
    """Sequences that attend alike: equally many new tokens, over equally many keys.

    Attributes:
        rows: their tokens in the step, n * q.
        slots: their keys, n * L.
        count: n.
        mask: (1, 1, q, L), or None.
        causal: whether plain causal attention will do.
    """

    rows: Slots
    slots: Slots
    count: int
    mask: Tensor | None
    causal: bool


class _GroupStep:
    """What one step writes and reads in the layers of one group."""

    def __init__(
        self,
        chunks: Sequence[Chunk],
        tables: Sequence[Sequence[int]],
        window: int | None,
        block_size: int,
        alone: bool,
        device: torch.device,
    ) -> None:
        self._chunks, self._window, self._size, self._alone, self._device = chunks, window, block_size, alone, device
        self._numbers, longest = tables, max(map(len, tables))
        self._table = torch.tensor([[*table, *[0] * (longest - len(table))] for table in tables])  # (S, blocks)
        self._rows = torch.tensor([0, *(len(chunk.tokens) for chunk in chunks)]).cumsum(dim=0).tolist()

    @cached_property
    def slots(self) -> Tensor:
        """Where the new tokens go, (N,)."""
        size = self._size
        pairs = zip(self._chunks, self._numbers, strict=True)
        return torch.tensor(
            [table[p // size] * size + p % size for chunk, table in pairs for p in range(chunk.start, chunk.end)]
        ).to(self._device)

    @cached_property
    def written(self) -> Slots:
        """The same, as a slice where they are consecutive."""
        return self._found([self.slots])

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scores: Scores) -> Tensor:
        """(N, H, D) over what the layer holds, (slots, K, D) each -> (N, H, Dv)"""
        table, starts, lengths = self.tables
        walked = native.paged_attention(
            query, keys, values, table, starts, lengths, scores.scale, self._window, scores.softcap, self._size
        )
        return self._gathered(query, keys, values, scores) if walked is None else walked

    @cached_property
    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """Block table, query starts and lengths, as the native operator wants them."""
        starts, ends = torch.tensor(self._rows), torch.tensor([chunk.end for chunk in self._chunks])
        table, starts, ends = (x.to(self._device, torch.int32) for x in (self._table, starts, ends))
        return table, starts, ends

    def _gathered(self, query: Tensor, keys: Tensor, values: Tensor, scores: Scores) -> Tensor:
        """The same in plain torch: keys and values are copied together, and sequences of one length attend at once."""
        made = []
        for product in self._products:
            q, k, v = (
                _take(x, index).unflatten(0, (product.count, -1)).transpose(1, 2)  # (n, heads, q or L, D)
                for x, index in ((query, product.rows), (keys, product.slots), (values, product.slots))
            )
            attended = attend(q, k, v, scores, product.mask, causal=product.causal)
            made.append(attended.transpose(1, 2).flatten(0, 1))  # (n * q, H, Dv)
        if len(made) == 1:
            return made[0]
        out = query.new_empty(*query.shape[:2], values.shape[-1])
        for product, rows in zip(self._products, made, strict=True):
            out[product.rows] = rows
        return out

    @cached_property
    def _products(self) -> list[_Product]:
        alike: dict[tuple[int, ...], list[int]] = {}
        for row, chunk in enumerate(self._chunks):
            first = self._first(chunk)
            kind = (len(chunk.tokens), chunk.start - first, row if self._alone else 0)
            alike.setdefault(kind, []).append(row)
        return [self._product(members) for members in alike.values()]

    def _product(self, members: list[int]) -> _Product:
        chunk = self._chunks[members[0]]
        new, before = len(chunk.tokens), chunk.start - self._first(chunk)
        rows = [torch.arange(self._rows[row], self._rows[row + 1]) for row in members]
        slots = [self._slots(row, self._first(self._chunks[row]), self._chunks[row].end) for row in members]
        bounded = self._window is not None and new > 1 and before + new > self._window
        causal = new > 1 and before == 0 and not bounded
        mask = None
        if new > 1 and not causal:
            places = torch.arange(before + new, device=self._device)[None]
            mask = visible(places[:, before:], places, self._window)
        return _Product(self._found(rows), self._found(slots), len(members), mask, causal)

    def _first(self, chunk: Chunk) -> int:
        """The first position that any of the new tokens sees."""
        return 0 if self._window is None else max(chunk.start - self._window + 1, 0)

    def _slots(self, row: int, first: int, last: int) -> Tensor:
        places = torch.arange(first, last)
        return self._table[row, places // self._size] * self._size + places % self._size

    def _found(self, parts: list[Tensor]) -> Slots:
        """As a slice where they are consecutive, which spares a copy."""
        index = torch.cat(parts)
        first, last = int(index[0]), int(index[-1])
        if last - first == len(index) - 1 and bool((index.diff() == 1).all()):
            return slice(first, last + 1)
        return index.to(self._device)


def _take(x: Tensor, index: Slots) -> Tensor:
    return x[index] if isinstance(index, slice) else x.index_select(0, index)
