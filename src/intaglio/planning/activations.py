"""Activations: what a decoder keeps for the backward, as PyTorch keeps it on a CPU.

The functions here walk a model as its forward does, layer by layer; `kept_parts` and `kept_attention` walk the parts.

Under tensor parallelism a rank's part of a layer is a smaller layer (`layouts.local_spec`): fewer heads, fewer
intermediate features, and all of E. Between the matrices it has all tokens, or with sequence parallelism its share of
them, which are gathered where a matrix reads them; the gathered copy is kept, as PyTorch's DTensor keeps it, where
Megatron gathers it again (Korthikanti et al. 2022, section 4.2.2).

Legend: T tokens, E features of the model. `tape.make(kind, n)` is a tensor of T * n elements.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from intaglio.planning.kept_attention import Rotaries, angles, attention, latent_attention
from intaglio.planning.kept_parts import feed_forward, mixture, norm
from intaglio.planning.losses import INT64
from intaglio.planning.passing_parts import in_backward, in_forward
from intaglio.planning.stages import Stage, whole_model
from intaglio.planning.tape import ADAPTER, ALONE, FLOAT, Shared, Stored, Tape
from intaglio.specs import BlockSpec, DecoderSpec, LatentAttentionSpec, LayerNormSpec, MoESpec

__all__ = ["Activations", "Backward", "activations"]


@dataclass(frozen=True)
class Backward:
    """What the layers' backward needs at its worst moment, in bytes.

    When a layer's turn comes, those behind it have had theirs, and what they kept is gone.

    Attributes:
        by_kind: what is still kept of the forward, by the part that made it.
        recomputed: what a checkpointed layer has made again.
        flowing: gradients on their way, and what a norm needs for its own.
        arriving: of these, what comes to the layer.
        before: what is kept when the layer's turn is over, by the part that made it.
        layer: its number; None is the norm at the end.
        flows: whether a gradient comes to it at all.
        making: what its forward needs for a moment, beside what is kept when it is done.
    """

    by_kind: Mapping[str, int]
    recomputed: int
    flowing: int
    arriving: int = 0
    before: Mapping[str, int] = field(default_factory=dict)
    layer: int | None = None
    flows: bool = True
    making: int = 0

    @property
    def total(self) -> int:
        return sum(self.by_kind.values()) + self.recomputed + self.flowing


@dataclass(frozen=True)
class Activations:
    """Bytes.

    Attributes:
        by_kind: kept from the forward to the backward, by the part that made them.
        backward: its worst moment.
        turns: each layer's, and at last that of the norm at the end.
        waiting: gradients that wait for the second half of a backward that is done in two; the first stage of a
            pipeline does all of it then.
    """

    by_kind: dict[str, int]
    backward: Backward
    turns: tuple[Backward, ...] = ()
    waiting: int = 0

    @cached_property
    def kept(self) -> int:
        return sum(self.by_kind.values())


def activations(
    spec: DecoderSpec,
    tokens: int,
    itemsize: int,
    documents: Sequence[int] | None = None,
    checkpoint_every: int | Literal["selective"] = 0,
    ranks: Mapping[str, int] | None = None,
    stage: Stage | None = None,
    shared: Shared = ALONE,
    products: int = 1,
) -> Activations:
    """What the hidden states of one row of `tokens` keep; logits and loss are counted elsewhere.

    Args:
        spec: of the model.
        tokens: in the row.
        itemsize: bytes of one element in the compute dtype.
        documents: lengths of the documents that the row packs; None is one sequence, not packed.
        checkpoint_every: of each that many layers the first keeps only its input; 0 checkpoints none; selective has
            every layer keep its input and the results of products and fused attention.
        ranks: of the adapters, see `planning.adapters`; None where every weight trains.
        stage: the layers that are walked; None walks all. What comes in from the stage before is counted elsewhere.
        shared: what of the row a rank has; `spec` is its part of the model then.
        products: selective keeps every so many-th of a layer's products, and attention always; 1 is ours.
    """
    tape = Tape(tokens, itemsize, documents, ranks, shared)
    stage = stage or whole_model(spec.num_layers)
    x = _embed(tape, spec) if stage.first else Stored("residual", 0, True)  # what comes in stands in a buffer
    rotaries: Rotaries = {}
    moments = []
    keeps = products if checkpoint_every == "selective" else 0
    every = 1 if checkpoint_every == "selective" else checkpoint_every
    for place, number in enumerate(stage.layers):
        block, before = spec.blocks[number], tape.by_kind()
        tape.layer = f"layers.{number}"
        if every and place % every == 0:
            x, again = _checkpointed(tape, block, spec.hidden_size, x, rotaries, keeps)
        else:
            x, again = _block(tape, block, spec.hidden_size, x, rotaries), 0
        size = x.num_bytes
        making = in_forward(tape, block, spec.hidden_size)
        flowing = size + in_backward(tape, block, spec.hidden_size, again=again > 0, products=keeps > 0)
        moments.append(Backward(tape.by_kind(), again, flowing, size, before, number, x.flows, making))
    if stage.last and spec.final_norm:
        before, size = tape.by_kind(), x.num_bytes
        norm(tape.between, spec.final_norm, x, spec.hidden_size)
        flowing = size + _norm_gradients(tape.between, spec)
        moments.append(Backward(tape.by_kind(), 0, flowing, size, before, None, x.flows))
    flowed = (moment for moment in moments if moment.flows)
    worst = max(flowed, key=lambda moment: moment.total, default=Backward({}, 0, 0))
    return Activations(tape.by_kind(), worst, tuple(moments), 0 if stage.first else tape.waiting)


def _checkpointed(
    tape: Tape, block: BlockSpec, size: int, x: Stored, rotaries: Rotaries, keeps: int
) -> tuple[Stored, int]:
    """What comes out of a layer that keeps its input and of its products every `keeps`-th (0: none), and the bytes that
    it makes again.

    Of the products that were kept those that no operation wants are gone once it has; but the last one, which it does
    not come to: it stops as soon as it has made what is wanted.
    """
    held = (x, *angles(tape, block.attention, rotaries), *_remembered(tape, block))
    again = tape.aside()
    out = _block(again, block, size, x, rotaries)
    if not out.flows:  # nothing of it is wanted
        return out, 0
    tape.take_waiting(again)
    results = again.results(keeps) if keeps else ()
    tape.hold(*held, *results)
    unwanted = sum(one.num_bytes for one in results if one is not again.last_product and not again.has(one))
    return out, again.total(without=(*held, *results)) - unwanted


def _remembered(tape: Tape, block: BlockSpec) -> tuple[Stored, ...]:
    """A router's scores and choice, which it shows to the loss that balances experts; made again they are others."""
    if not isinstance(block.feed_forward, MoESpec):
        return ()
    scores = tape.make("moe", block.feed_forward.num_experts, itemsize=FLOAT)
    return scores, tape.make("moe", block.feed_forward.num_experts_per_tok, itemsize=INT64)


def _norm_gradients(tape: Tape, spec: DecoderSpec) -> int:
    """Beside the gradient that comes to the last norm: what goes out; or the rows in fp32 that RMSNorm's is made of,
    where no native operator makes it in one pass (`parts.norm`)."""
    row = tape.tokens * spec.hidden_size
    native = tape.shared.cpu and tape.shared.native and tape.itemsize < FLOAT
    if isinstance(spec.final_norm, LayerNormSpec) or native:
        return row * tape.itemsize
    return row * FLOAT * (4 if tape.itemsize == FLOAT else 5)


def _embed(tape: Tape, spec: DecoderSpec) -> Stored:
    """The table's gradient needs the ids, of all tokens where this rank's are a view of them (`parallel.context`)."""
    x = tape.make("residual", spec.hidden_size, tape.weight)
    alone = tape.shared.tensor == 1
    ids = (tape.everywhere if alone else tape).make("inputs", 1, itemsize=INT64)
    tape.keep(x, ids)
    if rank := (tape.ranks or {}).get("embed_tokens", 0):
        low = tape.make("inputs", rank, ADAPTER, itemsize=FLOAT)
        tape.keep(ADAPTER, ids, low)
        x = tape.make("residual", spec.hidden_size, x, low)
    if not alone:  # which of the ids have their row here, see `vocabulary.SharedRows`
        tape.keep(x, tape.make("inputs", 1, itemsize=1))
    x = tape.settled("residual", spec.hidden_size, x)
    if spec.embedding_scale is not None:
        tape.keep(x, Stored("inputs", tape.itemsize))
    if spec.positions and spec.positions.kind == "learned":
        tape.keep(tape.weight, tape.everywhere.make("inputs", 1, itemsize=INT64))
    changed = spec.embedding_scale is not None or spec.positions is not None
    return tape.between.make("residual", spec.hidden_size, x, tape.weight) if changed else x


def _block(tape: Tape, block: BlockSpec, size: int, x: Stored, rotaries: Rotaries) -> Stored:
    def attend(h: Stored) -> Stored:
        if isinstance(block.attention, LatentAttentionSpec):
            return latent_attention(tape, block.attention, size, h, rotaries)
        return attention(tape, block.attention, size, h, rotaries)

    def feed(h: Stored) -> Stored:
        if isinstance(block.feed_forward, MoESpec):
            return mixture(tape, block.feed_forward, size, h)
        return feed_forward(tape, block.feed_forward, size, h)

    if block.placement == "parallel":
        return tape.between.make("residual", size, x, *(_branch(tape, block, size, x, f) for f in (attend, feed)))
    return _residual(tape, block, size, _residual(tape, block, size, x, attend), feed)


def _residual(tape: Tape, block: BlockSpec, size: int, x: Stored, f: Callable[[Stored], Stored]) -> Stored:
    x = tape.between.make("residual", size, x, _branch(tape, block, size, x, f))  # a sum keeps nothing
    return norm(tape.between, block.norm, x, size) if "outside" in block.norm_places else x


def _branch(tape: Tape, block: BlockSpec, size: int, x: Stored, f: Callable[[Stored], Stored]) -> Stored:
    read = norm(tape.between, block.norm, x, size) if "before" in block.norm_places else x
    out = f(tape.collected(read.kind, size, read))
    out = tape.settled(out.kind, size, out)
    return norm(tape.between, block.norm, out, size) if "after" in block.norm_places else out
