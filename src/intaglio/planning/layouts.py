"""Whether a model can be laid out so, and what of it one rank computes. No torch."""

from collections.abc import Iterator
from functools import lru_cache

from intaglio.errors import UserError
from intaglio.planning.shards import chunk
from intaglio.planning.stages import stages_of
from intaglio.specs import AttentionSpec, BlockSpec, DecoderSpec, FeedForwardSpec, MoESpec
from intaglio.specs.attention import LatentAttentionSpec
from intaglio.specs.parallel import ParallelSpec

__all__ = ["features_of", "heads_of", "local_spec", "require_possible"]


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
        yield from ((*heads_here, by, heads) for heads_here in heads_of(block))
        if isinstance(block.feed_forward, MoESpec):
            yield "experts", block.feed_forward.num_experts, "ep", layout.ep
        yield from ((*features, "tp", layout.tp) for features in features_of(block))


def heads_of(block: BlockSpec) -> Iterator[tuple[str, int]]:
    """What of a layer's attention ranks share out whole, and how many there are."""
    yield "query heads", block.attention.num_heads
    if isinstance(block.attention, AttentionSpec):
        yield "key/value heads", block.attention.kv_heads


def features_of(block: BlockSpec) -> Iterator[tuple[str, int]]:
    """What tp cuts of a layer's feed-forward, and how wide it is."""
    dense: FeedForwardSpec | MoESpec | None = block.feed_forward
    if isinstance(dense, MoESpec):
        yield "features of an expert", dense.expert.intermediate_size
        dense = dense.shared
    if dense is not None:
        yield "intermediate features", dense.intermediate_size


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
