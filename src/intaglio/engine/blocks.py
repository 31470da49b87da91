"""Memory for keys and values in blocks of one size, handed out like an operating system's pages.

A sequence's tokens lie in blocks that its block table names in order, wherever those are (Kwon et al. 2023, arXiv
2309.06180). Only the last block is ever partly filled, so a sequence wastes at most `block_size` - 1 slots. The
contiguous reservation that this replaced is the same pool with blocks as long as the longest sequence allowed.

A block has as many references as tables name it. Without any it is free, but keeps its key and its contents until it is
handed out again: free and cached at once.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["GONE", "BlockKey", "BlockPool", "Copy"]

GONE = -1
"""In a block table: a block that was given back because it lies behind the window."""


@dataclass(frozen=True, slots=True)
class BlockKey:
    """What a full block holds.

    Attributes:
        digest: of the two others, and so of all tokens up to the end of the block.
        parent: the digest of the block before it; for the first block one of the salt.
        tokens: of the block itself.
    """

    digest: bytes
    parent: bytes
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Copy:
    """Slots to copy before the step's tokens are computed, because a shared block is about to be written.

    Attributes:
        group: number of the pool, and of the layers whose K/V it holds.
        source, target: blocks.
    """

    group: int
    source: int
    target: int


class BlockPool:
    """The blocks of one group of layers: those that see everything, or those of one window.

    Args:
        num_blocks: blocks there are, numbered from 0.
        block_size: tokens in a block.
        window: see `AttentionSpec`; blocks wholly behind it are given back.
    """

    def __init__(self, num_blocks: int, block_size: int, window: int | None = None) -> None:
        assert num_blocks > 0, "a pool needs blocks"
        assert block_size > 0, "a block needs slots"
        self.num_blocks, self.block_size, self.window = num_blocks, block_size, window
        self._references = [0] * num_blocks
        self._free = OrderedDict.fromkeys(range(num_blocks))  # the first is handed out next
        self._keys: dict[int, BlockKey] = {}
        self._cached: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that no table names, cached ones included."""
        return len(self._free)

    def references(self, block: int) -> int:
        """How many tables name `block`."""
        return self._references[block]

    # Single blocks

    def allocate(self) -> int:
        """A block of one's own: one without contents worth keeping, else the one that was free longest."""
        block, _ = self._free.popitem(last=False)
        self.forget(block)
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Names `block` once more; it may be free and cached."""
        self._free.pop(block, None)
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Names `block` once less."""
        assert self._references[block] > 0, f"block {block} is free already"
        self._references[block] -= 1
        if self._references[block] == 0:
            self._free[block] = None
            self._free.move_to_end(block, last=block in self._keys)

    # What blocks hold

    def publish(self, block: int, key: BlockKey) -> None:
        """Lets others find the full `block`; nothing where another holds the same already, or the digest is taken."""
        if block not in self._keys and key.digest not in self._cached:
            self._keys[block] = key
            self._cached[key.digest] = block

    def find(self, key: BlockKey) -> int | None:
        """The block that holds `key`, compared token by token: an equal digest alone proves nothing."""
        block = self._cached.get(key.digest)
        return block if block is not None and self._keys[block] == key else None

    def forget(self, block: int) -> None:
        """Nobody finds `block` any more: it is about to hold something else."""
        key = self._keys.pop(block, None)
        if key:
            del self._cached[key.digest]

    # Block tables

    def missing(self, table: Sequence[int], start: int, end: int) -> int:
        """Free blocks that writing tokens `start`..`end` - 1 takes, where the table holds those before."""
        return -(-end // self.block_size) - len(table) + self._must_copy(table, start)

    def grow(self, table: list[int], start: int, end: int) -> tuple[int, int] | None:
        """Makes slots for tokens `start`..`end` - 1.

        Returns:
            The block to copy and the one to copy it to, where `start` lies in a block that others name too.
        """
        copy = self._own(table, start)
        while len(table) * self.block_size < end:
            table.append(self.allocate())
        return copy

    def _must_copy(self, table: Sequence[int], start: int) -> bool:
        inside = start % self.block_size > 0
        return inside and self._references[table[start // self.block_size]] > 1

    def _own(self, table: list[int], start: int) -> tuple[int, int] | None:
        """Makes the block that `start` lies in one that may be written."""
        if start % self.block_size == 0:
            return None
        place = start // self.block_size
        block = table[place]
        if self._references[block] == 1:
            self.forget(block)
            return None
        table[place] = self.allocate()
        self.release(block)
        return block, table[place]

    def behind(self, computed: int) -> int:
        """Blocks at the head of a table that no token from number `computed` on can see."""
        return 0 if self.window is None else max(0, computed - self.window + 1) // self.block_size

    def give_back(self, table: list[int], computed: int) -> None:
        """Releases the blocks that are wholly behind the window of the next token."""
        for place in reversed(range(min(self.behind(computed), len(table)))):
            if table[place] == GONE:
                break
            self.release(table[place])
            table[place] = GONE

    def cut(self, table: list[int], length: int) -> None:
        """Releases the blocks after the first `length` tokens, the last first: a prefix is worth more than its end."""
        while len(table) * self.block_size >= length + self.block_size:
            block = table.pop()
            if block != GONE:
                self.release(block)

    def peak(self, length: int, chunk: int) -> int:
        """Blocks that a sequence of `length` tokens names at once, at most, if it is written by `chunk` tokens."""
        whole = -(-length // self.block_size)
        if self.window is None:
            return whole
        seen = self.window - 1 + chunk
        return min(whole, (seen + self.block_size - 2) // self.block_size + 1)
