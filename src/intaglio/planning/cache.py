"""Keys and values of sequences, in blocks. No torch."""

from intaglio.specs import DecoderSpec
from intaglio.specs.attention import LatentAttentionSpec

__all__ = ["BLOCK", "cache_bytes", "cached_bytes_by_kind"]

BLOCK = 16
"""Tokens in a block of the cache, where nothing else is said (`engine.interface.EngineConfig.block_size`)."""


def cache_bytes(spec: DecoderSpec, context: int, dtype: str, *, tp: int = 1, block: int = BLOCK) -> int:
    """Bytes of one sequence of `context` tokens on one rank.

    Layers with a window hold the blocks that it reaches into. Ranks of tensor parallelism have their own heads each;
    where there are more ranks than key/value heads, several have the same; a latent is whole on all of them.
    """
    return sum(cached_bytes_by_kind(spec, context, dtype, tp=tp, block=block).values())


def cached_bytes_by_kind(
    spec: DecoderSpec, context: int, dtype: str, *, tp: int = 1, block: int = BLOCK
) -> dict[str, int]:
    """The same by kind of layer: `full`, `window N` or `latent`."""
    sums: dict[str, int] = {}
    for one in spec.blocks:
        attention = one.attention
        held = _tokens(attention.window, context, block)
        of_token = attention.kv_bytes_per_token(dtype)
        if isinstance(attention, LatentAttentionSpec):
            kind = "latent"
        else:
            kind = "full" if attention.window is None or attention.window >= context else f"window {attention.window}"
            of_token = of_token // attention.kv_heads * max(attention.kv_heads // tp, 1)
        sums[kind] = sums.get(kind, 0) + held * of_token
    return sums


def _tokens(window: int | None, context: int, block: int) -> int:
    """Slots that are taken: whole blocks; a window may begin in the midst of one."""
    whole = -(-context // block) * block
    if window is None or window >= context:
        return whole
    return min(whole, (-(-(window - 1) // block) + 1) * block)
