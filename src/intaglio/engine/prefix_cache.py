"""Which prefixes the cache holds: blocks are found by a chain of hashes over their tokens and all before them.

Only full blocks are found and shared. A strong hash makes collisions improbable, and comparing tokens makes them
harmless. The chain begins with the salt, so that nothing is shared between adapters.
"""

from array import array
from collections.abc import Sequence as Many
from hashlib import blake2b

from intaglio.engine.blocks import GONE, BlockKey, BlockPool
from intaglio.engine.sequence import Sequence

__all__ = ["block_hash", "find_prefix", "publish"]


def block_hash(parent: bytes, tokens: Many[int]) -> bytes:
    """The digest of a block of `tokens` that follows the one with digest `parent`."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()


def find_prefix(pools: Many[BlockPool], sequence: Sequence) -> list[list[int]]:
    """The block tables, one a pool, of the longest prefix of `sequence` that every pool holds; nothing is shared yet.

    At least the last token is left over, and all beyond `most_cached`: they must be computed for there to be an output.
    A pool with a window need only hold what the next token sees.
    """
    block_size = pools[0].block_size
    most = len(sequence.tokens) - 1
    length = (most if sequence.most_cached is None else min(most, sequence.most_cached)) // block_size
    keys = _keys(sequence, length, block_size)
    for pool in pools:
        if pool.window is None:
            length = next((place for place in range(length) if pool.find(keys[place]) is None), length)
    while length and not all(_holds(pool, keys, length) for pool in pools if pool.window is not None):
        length -= 1
    return [_table(pool, keys[:length]) for pool in pools]


def publish(pools: Many[BlockPool], sequence: Sequence, start: int) -> None:
    """Lets others find the blocks that `sequence` filled since it had computed `start` tokens."""
    block_size = pools[0].block_size
    full = range(start // block_size, sequence.computed // block_size)
    keys = _keys(sequence, full.stop, block_size)
    for pool, table in zip(pools, sequence.block_tables, strict=True):
        for place in full:
            pool.publish(table[place], keys[place])


def _keys(sequence: Sequence, count: int, block_size: int) -> list[BlockKey]:
    """The keys of the first `count` blocks, made once."""
    keys = sequence.keys
    while len(keys) < count:
        parent = keys[-1].digest if keys else blake2b(sequence.salt, digest_size=16, person=b"salt").digest()
        start = len(keys) * block_size
        tokens = tuple(sequence.tokens[start : start + block_size])
        keys.append(BlockKey(block_hash(parent, tokens), parent, tokens))
    return keys


def _holds(pool: BlockPool, keys: Many[BlockKey], length: int) -> bool:
    """Whether `pool` holds all that a token after `length` blocks sees."""
    first = pool.behind(length * pool.block_size)
    return all(pool.find(keys[place]) is not None for place in reversed(range(first, length)))


def _table(pool: BlockPool, keys: Many[BlockKey]) -> list[int]:
    """The blocks of a prefix that `pool` holds."""
    gone = pool.behind(len(keys) * pool.block_size)
    found = [pool.find(key) for key in keys[gone:]]
    return [GONE] * gone + [block for block in found if block is not None]
