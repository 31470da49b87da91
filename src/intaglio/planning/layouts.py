"""Whether a model can be laid out so, and what of it one rank computes. No torch."""

from collections.abc import Iterator
from functools import lru_cache

from intaglio.errors import UserError
from intaglio.planning.shards import chunk
from intaglio.planning.stages import stages_of
from intaglio.specs import AttentionSpec, BlockSpec, DecoderSpec, FeedForwardSpec, MoESpec
from intaglio.specs.attention import LatentAttentionSpec
from intaglio.specs.parallel import ParallelSpec

__all__ = ["local_spec", "require_possible"]


def require_possible(spec: DecoderSpec, layout: ParallelSpec, sequence: int | None = None) -> None:
    """Refuses a layout that this model cannot have.

    Args:
        spec: of the model.
        layout: of its ranks.
        sequence: tokens of one sequence, where it is known.

    Raises:
        UserError: names the first thing that does not divide.
    """
    stages_of(spec, layout.pp.stages)
    for what, size, by, ranks in _shares(spec, layout):
        if size % ranks:
            raise UserError(f"{by} {ranks} does not divide the model's {what} ({size})", where=by, mend="take another")
    if layout.ep > 1 and not any(isinstance(block.feed_forward, MoESpec) for block in spec.blocks):
        raise UserError("the model has no experts to spread", where="ep", mend="leave ep out")
    if layout.ep > 1 and layout.hsdp > 1:
        raise UserError("experts are spread over all of dp, which hsdp cuts", where="ep", mend="leave hsdp or ep out")
    if sequence is not None and sequence < layout.cp:
        raise UserError(f"{layout.cp} ranks share {sequence} tokens of a sequence", where="cp", mend="take fewer")


def _shares(spec: DecoderSpec, layout: ParallelSpec) -> Iterator[tuple[str, int, str, int]]:
    """What must divide: what it is, how much, by which part of the layout, among how many."""
    heads = layout.tp * (layout.cp if layout.cp_method == "ulysses" else 1)
    by = "tp" if heads == layout.tp else "tp x cp"
    for block in dict.fromkeys(spec.blocks):
        yield "query heads", block.attention.num_heads, by, heads
        if isinstance(block.attention, AttentionSpec):
            yield "key/value heads", block.attention.kv_heads, by, heads
        feed_forward: FeedForwardSpec | MoESpec | None = block.feed_forward
        if isinstance(feed_forward, MoESpec):
            yield "experts", feed_forward.num_experts, "ep", layout.ep
            yield "features of an expert", feed_forward.expert.intermediate_size, "tp", layout.tp
            feed_forward = feed_forward.shared
        if feed_forward is not None:
            yield "intermediate features", feed_forward.intermediate_size, "tp", layout.tp


@lru_cache(maxsize=64)
def local_spec(spec: DecoderSpec, tp: int) -> DecoderSpec:
    """What the first of `tp` ranks computes, as a model: fewer heads and features, as many layers.

    The vocabulary is left as it is: ids come from all of it.
    """
    if tp == 1:
        return spec
    blocks = [_local_block(block, tp) for block in spec.blocks]
    return spec.updated(layers=blocks)


@lru_cache(maxsize=256)
def _local_block(block: BlockSpec, tp: int) -> BlockSpec:
    attention = block.attention
    if isinstance(attention, LatentAttentionSpec):
        attention = attention.updated(num_heads=attention.num_heads // tp)
    else:
        attention = attention.updated(num_heads=attention.num_heads // tp, num_kv_heads=attention.kv_heads // tp)
    feed_forward = block.feed_forward
    if isinstance(feed_forward, MoESpec):
        shared = None if feed_forward.shared is None else _narrower(feed_forward.shared, tp)
        feed_forward = feed_forward.updated(expert=_narrower(feed_forward.expert, tp), shared=shared)
    else:
        feed_forward = _narrower(feed_forward, tp)
    return block.updated(attention=attention, feed_forward=feed_forward)


def _narrower(spec: FeedForwardSpec, tp: int) -> FeedForwardSpec:
    return spec.updated(intermediate_size=chunk(spec.intermediate_size, tp, 0))
