"""Whether a model can be laid out so, and what of it one rank computes. No torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from intaglio.errors import UserError
from intaglio.planning.shards import chunk
from intaglio.planning.stages import stages_of
from intaglio.specs import AttentionSpec, BlockSpec, DecoderSpec, FeedForwardSpec, MoESpec
from intaglio.specs.attention import LatentAttentionSpec
from intaglio.specs.parallel import ParallelSpec

__all__ = ["features_of", "heads_of", "local_spec", "require_cut_adapter", "require_possible"]


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
    for share in _shares(spec, layout):
        share.require()
    if layout.ep > 1 and not any(isinstance(block.feed_forward, MoESpec) for block in spec.blocks):
        raise UserError("the model has no experts to spread", where="ep", mend="leave ep out")
    if chunk(spec.vocab_size, layout.tp, layout.tp - 1) == 0:
        what = f"tp {layout.tp} leaves a rank without a row of the {spec.vocab_size} of the vocabulary"
        raise UserError(what, where="tp", mend="take fewer ranks")
    if sequence is not None and sequence < layout.cp:
        raise UserError(f"{layout.cp} ranks share {sequence} tokens of a sequence", where="cp", mend="take fewer")


def require_cut_adapter(path: str, *, dora: bool) -> None:
    """Refuses an adapter that makes sense only beside a whole matrix.

    Args:
        path: of the module that has it.
        dora: whether the rows of the sum have trained lengths.

    Raises:
        UserError: tp would cut through it.
    """
    steps = path.split(".")
    if dora and ("o_proj" in steps or "down_proj" in steps):
        what = f"DoRA needs whole columns, which no rank of tp has of {path}"
        raise UserError(what, where="tp", mend="take LoRA, or no tp")
    if steps[0] in ("embed_tokens", "lm_head"):
        what = f"an adapter on {steps[0]} cannot be cut over a vocabulary"
        raise UserError(what, where="tp", mend="leave it out, or take no tp")


@dataclass(frozen=True)
class _Share:
    """Something of a model that ranks share out whole, piece by piece.

    Attributes:
        what: it is.
        size: how much.
        by: the part of the layout, in words.
        ranks: of it.
        where, mend: see `UserError`.
    """

    what: str
    size: int
    by: str
    ranks: int
    where: str
    mend: str = "take another"

    def require(self) -> None:
        if self.size % self.ranks:
            what = f"{self.by} does not divide the model's {self.what} ({self.size})"
            raise UserError(what, where=self.where, mend=self.mend)


def _shares(spec: DecoderSpec, layout: ParallelSpec) -> Iterator[_Share]:
    tp, cp = f"tp {layout.tp}", f"cp {layout.cp}" + (f" x tp {layout.tp}" if layout.tp > 1 else "")
    exchanged = layout.cp * layout.tp if layout.cp_method == "ulysses" else 1
    for block in dict.fromkeys(spec.blocks):
        for what, size in (*heads_of(block), *features_of(block)):
            yield _Share(what, size, tp, layout.tp, "tp")
        for what, size in heads_of(block):
            mend = "take cp_method: all_gather, or another cp"
            yield _Share(what, size, cp, exchanged, "cp", mend)
        if isinstance(block.feed_forward, MoESpec):
            yield _Share("experts", block.feed_forward.num_experts, f"ep {layout.ep}", layout.ep, "ep")


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
