"""Activations: what the parts of a decoder keep for the backward, as PyTorch keeps it on a CPU.

Each function here walks one part as its forward in `intaglio.parts` does. What other devices do otherwise: on a CPU
attention whose values are of another width than its keys (latent attention) keeps its probabilities, since the fused
kernel wants one width.

Under tensor parallelism a rank's part of a layer is a smaller layer (`layouts.local_block`): fewer heads, fewer
intermediate features, and all of E. Between the matrices it has all tokens, or with sequence parallelism its share of
them, which are gathered where a matrix reads them; the gathered copy is kept, as PyTorch's DTensor keeps it, where
Megatron gathers it again (Korthikanti et al. 2022, section 4.2.2).

Legend: T tokens, E features of the model, H query heads, K key/value heads, D head width, I intermediate features,
X experts, k experts per token. `tape.make(kind, n)` is a tensor of T * n elements.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from intaglio.planning.losses import INT64
from intaglio.planning.stages import Stage, whole_model
from intaglio.planning.tape import ALONE, FLOAT, Shared, Stored, Tape
from intaglio.specs import (
    AttentionSpec,
    BlockSpec,
    DecoderSpec,
    FeedForwardSpec,
    LatentAttentionSpec,
    LayerNormSpec,
    MoESpec,
    NormSpec,
    RotarySpec,
    SwishSpec,
)

__all__ = ["Activations", "Backward", "activations"]

SHORT_DOCUMENT = 384
"""Tokens up to which a packed document's attention in bf16 is differentiated by plain products on a CPU."""

Product = Callable[[str, Stored, int], Stored]
Rotaries = dict[tuple[RotarySpec, int], tuple[Stored, Stored]]


@dataclass(frozen=True)
class Backward:
    """What the layers' backward needs at its worst moment, in bytes.

    When a layer's turn comes, those behind it have had theirs, and what they kept is gone.

    Attributes:
        by_kind: what is still kept of the forward, by the part that made it.
        recomputed: what a checkpointed layer has made again.
        flowing: gradients on their way, and what a norm needs for its own.
    """

    by_kind: Mapping[str, int]
    recomputed: int
    flowing: int

    @property
    def total(self) -> int:
        return sum(self.by_kind.values()) + self.recomputed + self.flowing


@dataclass(frozen=True)
class Activations:
    """Bytes.

    Attributes:
        by_kind: kept from the forward to the backward, by the part that made them.
        backward: its worst moment.
    """

    by_kind: dict[str, int]
    backward: Backward

    @property
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
        stage: the layers that are walked; None walks all.
        shared: what of the row a rank has; `spec` is its part of the model then.
        products: selective keeps every so many-th of a layer's products, and attention always; 1 is ours.
    """
    tape = Tape(tokens, itemsize, documents, ranks, shared)
    stage = stage or whole_model(spec.num_layers)
    x = _embed(tape, spec) if stage.first else tape.between.make("residual", spec.hidden_size)
    rotaries: Rotaries = {}
    moments = []
    keeps = products if checkpoint_every == "selective" else 0
    every = 1 if checkpoint_every == "selective" else checkpoint_every
    for place, number in enumerate(stage.layers):
        block = spec.blocks[number]
        tape.layer = f"layers.{number}"
        if every and place % every == 0:
            x, again = _checkpointed(tape, block, spec.hidden_size, x, rotaries, keeps)
        else:
            x, again = _block(tape, block, spec.hidden_size, x, rotaries), 0
        if tape.flowing:
            moments.append(Backward(tape.by_kind(), again, x.num_bytes + _inner_gradients(tape, block)))
    if stage.last and spec.final_norm:
        _norm(tape.between, spec.final_norm, x, spec.hidden_size)
        if tape.flowing:
            moments.append(Backward(tape.by_kind(), 0, x.num_bytes + _norm_gradients(tape.between, spec)))
    worst = max(moments, key=lambda moment: moment.total, default=Backward({}, 0, 0))
    return Activations(tape.by_kind(), worst)


def _checkpointed(
    tape: Tape, block: BlockSpec, size: int, x: Stored, rotaries: Rotaries, keeps: int
) -> tuple[Stored, int]:
    """What comes out of a layer that keeps its input and of its products every `keeps`-th (0: none), and the bytes that
    it makes again.

    Of the products that were kept those that no operation wants are gone once it has; but the last one, which it does
    not come to: it stops as soon as it has made what is wanted.
    """
    held = (x, *_angles(tape, block.attention, rotaries))
    tape.hold(*held)
    again = tape.aside()
    out = _block(again, block, size, x, rotaries)
    tape.flowing = again.flowing
    results = again.results(keeps) if keeps else ()
    tape.hold(*results)
    unwanted = sum(one.num_bytes for one in results if one is not again.last_product and not again.has(one))
    return out, again.total(without=(*held, *results)) - unwanted


def _inner_gradients(tape: Tape, block: BlockSpec) -> int:
    """Of the features inside a feed-forward, beyond what its own backward has let go of by then."""
    rows, inner = 1, block.feed_forward
    if isinstance(inner, MoESpec):
        rows, inner = inner.num_experts_per_tok, inner.expert
    adapted = tape.shared.twice and (tape.ranks or {}).get(f"{tape.layer}.feed_forward.down_proj", 0) > 0
    return tape.tokens * rows * inner.intermediate_size * (2 if inner.gated or adapted else 1) * tape.itemsize


def _norm_gradients(tape: Tape, spec: DecoderSpec) -> int:
    """Beside the gradient that comes to the last norm: what goes out; or the rows in fp32 that RMSNorm's is made of,
    where no native operator makes it in one pass (`parts.norm`)."""
    row = tape.tokens * spec.hidden_size
    if isinstance(spec.final_norm, LayerNormSpec) or (tape.shared.cpu and tape.itemsize < FLOAT):
        return row * tape.itemsize
    return row * FLOAT * (4 if tape.itemsize == FLOAT else 5)


def _embed(tape: Tape, spec: DecoderSpec) -> Stored:
    tape.keep(tape.make("inputs", 1, INT64))  # the ids, which the table's gradient needs
    if spec.positions and spec.positions.kind == "learned":
        tape.keep(tape.make("inputs", 1, INT64))
    if spec.embedding_scale is not None:
        tape.keep(Stored("inputs", tape.itemsize))
    return tape.between.make("residual", spec.hidden_size)


def _block(tape: Tape, block: BlockSpec, size: int, x: Stored, rotaries: Rotaries) -> Stored:
    def attention(h: Stored) -> Stored:
        if isinstance(block.attention, LatentAttentionSpec):
            return _latent_attention(tape, block.attention, size, h, rotaries)
        return _attention(tape, block.attention, size, h, rotaries)

    def feed_forward(h: Stored) -> Stored:
        if isinstance(block.feed_forward, MoESpec):
            return _mixture(tape, block.feed_forward, size, h)
        return _feed_forward(tape, block.feed_forward, size, h)

    if block.placement == "parallel":
        _branch(tape, block, size, x, attention)
        _branch(tape, block, size, x, feed_forward)
        return tape.between.make("residual", size)
    return _residual(tape, block, size, _residual(tape, block, size, x, attention), feed_forward)


def _residual(tape: Tape, block: BlockSpec, size: int, x: Stored, f: Callable[[Stored], Stored]) -> Stored:
    _branch(tape, block, size, x, f)
    x = tape.between.make("residual", size)  # a sum keeps nothing
    return _norm(tape.between, block.norm, x, size) if block.placement == "post" else x


def _branch(tape: Tape, block: BlockSpec, size: int, x: Stored, f: Callable[[Stored], Stored]) -> None:
    before = block.placement in ("pre", "sandwich", "parallel")
    out = f(tape.gathered(_norm(tape.between, block.norm, x, size) if before else x, size))
    if block.placement in ("residual", "sandwich"):
        _norm(tape.between, block.norm, tape.scattered(out, size), size)


def _norm(tape: Tape, norm: NormSpec, x: Stored, size: int, rows: int = 1) -> Stored:
    """Over `rows` rows of `size` features for each token."""
    if isinstance(norm, LayerNormSpec):  # the row, its mean and its deviation
        tape.keep(x, tape.make("norm", rows), tape.make("norm", rows))
        return tape.make("norm", rows * size)
    tape.keep(x, tape.make("norm", rows, FLOAT))  # the row and one number
    if norm.unit_offset:
        tape.keep(Stored("norm", size * tape.itemsize))  # 1 + weight
    return tape.make("norm", rows * size)


def _angles(tape: Tape, spec: AttentionSpec | LatentAttentionSpec, rotaries: Rotaries) -> tuple[Stored, ...]:
    """cos and sin, one pair for all layers that turn alike."""
    if not spec.rope:
        return ()
    width = spec.qk_rope_head_dim if isinstance(spec, LatentAttentionSpec) else spec.width
    key = (spec.rope, width)
    if key not in rotaries:
        turned = spec.rope.dim or width
        rotaries[key] = (tape.make("rotary", turned), tape.make("rotary", turned))
    return rotaries[key]


def _attention(tape: Tape, spec: AttentionSpec, size: int, x: Stored, rotaries: Rotaries) -> Stored:
    heads, kv_heads, width = spec.num_heads, spec.kv_heads, spec.width
    sizes = {"q_proj": heads, "k_proj": kv_heads, "v_proj": kv_heads}
    query, key, value = (_project(tape, name, x, count * width) for name, count in sizes.items())
    if spec.qk_norm:
        query, key = (_qk_norm(tape, spec, y, count) for y, count in ((query, heads), (key, kv_heads)))
    if spec.rope:
        tape.keep(*_angles(tape, spec, rotaries))
        query, key = tape.make("attention", heads * width), tape.make("attention", kv_heads * width)
    if spec.softcap is not None:
        tape.keep(query, *_capped_scores(tape, spec))
        return _project(tape, "o_proj", tape.make("attention", heads * width), size)
    partly = spec.rope is not None and (spec.rope.dim or width) < width
    key, value = (_collected(tape, one, kv_heads * width) for one in (key, value))
    out = _fused(tape, query, key, value, heads, width, spec.window)
    copied = tape.documents is not None or (partly and heads > 1)  # joined, or turned from (H, T, D) to (T, H, D)
    copied = copied or tape.shared.exchanges
    return _project(tape, "o_proj", tape.make("attention", heads * width) if copied else out, size)


def _project(tape: Tape, name: str, x: Stored, features: int) -> Stored:
    return tape.linear("attention", f"attention.{name}", x, features)


def _qk_norm(tape: Tape, spec: AttentionSpec, x: Stored, heads: int) -> Stored:
    assert spec.qk_norm
    if spec.qk_norm.over == "head":
        return _norm(tape, spec.qk_norm.norm, x, spec.width, heads)
    return _norm(tape, spec.qk_norm.norm, x, heads * spec.width)


def _collected(tape: Tape, x: Stored, features: int) -> Stored:
    """Keys or values of all tokens, where the ranks that share a sequence collect them."""
    return Stored(x.kind, tape.whole * features * tape.itemsize) if tape.shared.gathers else x


def _fused(tape: Tape, query: Stored, key: Stored, value: Stored, heads: int, width: int, window: int | None) -> Stored:
    """The fused kernel: queries, keys, values, the result, one log-sum per row, and a mask where a window binds.

    Of short documents (see `parts.short_attention`) neither result nor log-sums.
    """
    out, sums = tape.attended(heads * width), tape.attended(heads, FLOAT)
    tape.keep(query, key, value)
    if tape.documents is None:
        tape.keep(out, sums)
    for length in tape.lengths:
        bounded = window is not None and window < length
        if tape.documents is not None and (bounded or not _short(tape, length)):
            tape.keep(Stored("attention", tape.part(length * heads * (width * tape.itemsize + FLOAT))))
        if bounded:
            tape.keep(Stored("attention", tape.part(length * length * tape.itemsize)))
    return out


def _short(tape: Tape, length: int) -> bool:
    return tape.shared.cpu and tape.itemsize < FLOAT and length <= SHORT_DOCUMENT


def _squares(tape: Tape) -> int:
    """Scores of one head."""
    return tape.part(sum(length * length for length in tape.lengths))


def _capped_scores(tape: Tape, spec: AttentionSpec) -> tuple[Stored, ...]:
    """Written out: keys and values repeated for every head, tanh, the mask, and the probabilities in fp32."""
    scores = spec.num_heads * _squares(tape)
    repeated = [tape.make("attention", spec.num_heads * spec.width) for _ in ("keys", "values")]
    tanh, mask = Stored("attention", scores * tape.itemsize), Stored("attention", _squares(tape))
    softmax = Stored("attention", scores * FLOAT)
    rounded = softmax if tape.itemsize == FLOAT else Stored("attention", scores * tape.itemsize)
    return (*repeated, tanh, mask, softmax, rounded)


def _latent_attention(tape: Tape, spec: LatentAttentionSpec, size: int, x: Stored, rotaries: Rotaries) -> Stored:
    """The expanded form, which training uses."""
    heads, width = spec.num_heads, spec.qk_head_dim
    if spec.q_lora_rank:
        latent = _project(tape, "q_a_proj", x, spec.q_lora_rank)
        _project(tape, "q_b_proj", _norm(tape, spec.norm, latent, spec.q_lora_rank), heads * width)
    else:
        _project(tape, "q_proj", x, heads * width)
    joined = _project(tape, "kv_a_proj", x, spec.latent_width)  # the latent and the rotary key are views of one product
    latent = _norm(tape, spec.norm, joined, spec.kv_lora_rank)
    tape.keep(*_angles(tape, spec, rotaries))
    rebuilt = _project(tape, "kv_b_proj", latent, heads * (spec.qk_nope_head_dim + spec.v_head_dim))
    query, key = tape.make("attention", heads * width), tape.make("attention", heads * width)
    if width == spec.v_head_dim or not tape.shared.cpu:
        out = _fused(tape, query, key, rebuilt, heads, spec.v_head_dim, None)
    else:
        out = _probabilities(tape, spec, rebuilt)
    copied = heads > 1 or tape.documents is not None or tape.shared.exchanges
    return _project(tape, "o_proj", tape.make("attention", heads * spec.v_head_dim) if copied else out, size)


def _probabilities(tape: Tape, spec: LatentAttentionSpec, rebuilt: Stored) -> Stored:
    """Unfused: scaled queries and keys, probabilities and values, all in fp32."""
    heads = spec.num_heads
    scaled = [tape.make("attention", heads * spec.qk_head_dim, FLOAT) for _ in ("queries", "keys")]
    value = tape.as_float("attention", rebuilt, heads * spec.v_head_dim)
    tape.keep(*scaled, value, Stored("attention", heads * _squares(tape) * FLOAT))
    return tape.make("attention", heads * spec.v_head_dim)


def _feed_forward(
    tape: Tape, spec: FeedForwardSpec, size: int, x: Stored, kind: str = "feed_forward", path: str = "feed_forward"
) -> Stored:
    def product(name: str, read: Stored, width: int) -> Stored:
        return tape.linear(kind, f"{path}.{name}", read, width)

    return product("down_proj", _inner(tape, spec, kind, product, x), size)


def _inner(tape: Tape, spec: FeedForwardSpec, kind: str, product: Product, x: Stored, times: int = 1) -> Stored:
    """What goes into the last matrix: the bend, times the gated half if there is one; `times` rows for each token."""
    width = times * spec.intermediate_size
    inner, bent = product("gate_proj" if spec.gated else "up_proj", x, width), tape.make(kind, width)
    if isinstance(spec.activation, SwishSpec):
        tape.keep(inner, tape.make(kind, width))  # x and the sigmoid
    elif spec.activation in ("relu", "sigmoid"):
        tape.keep(bent)
    else:
        tape.keep(inner)
    if not spec.gated:
        return bent
    if spec.activation == "silu" and tape.itemsize < FLOAT:  # bent again in the backward, see `parts.feed_forward`
        tape.keep(product("up_proj", x, width))
    else:
        tape.keep(bent, product("up_proj", x, width))
    return tape.make(kind, width)


def _mixture(tape: Tape, spec: MoESpec, size: int, x: Stored) -> Stored:
    """The router, then k rows for each token: sorted by expert, run, weighted, and put back in order."""
    chosen = spec.num_experts_per_tok
    grouped = tape.itemsize == 2 and size % 8 == 0 and spec.expert.intermediate_size % 8 == 0

    def product(name: str, read: Stored, width: int) -> Stored:
        """All experts' results: of one fused product, or of one for each expert, joined; adapters compute in fp32."""
        rank = tape.rank(f"feed_forward.experts.{name}")
        if tape.ranks is None:
            tape.keep(read)
        elif rank:
            inputs = read.num_bytes // tape.itemsize // tape.tokens
            tape.keep(tape.as_float("moe", read, inputs), tape.make("moe", chosen * rank, FLOAT))
        made = tape.product("moe", width)
        return made if grouped else tape.make("moe", width)

    _router(tape, spec, size, x)
    tape.keep(tape.make("moe", chosen, INT64), tape.make("moe", chosen, INT64))  # which token; and the order
    rows = tape.make("moe", chosen * size)
    out = product("down_proj", _inner(tape, spec.expert, "moe", product, rows, chosen), chosen * size)
    if grouped:
        tape.keep(Stored("moe", spec.num_experts * 4))  # where each expert's rows end
    tape.keep(out, tape.make("moe", chosen), tape.make("moe", chosen * size))
    if spec.shared:
        _feed_forward(tape, spec.shared, size, x, "moe", "feed_forward.shared")
    return tape.make("moe", size)


def _router(tape: Tape, spec: MoESpec, size: int, x: Stored) -> None:
    """In fp32: the row, the scores, the choice, the weights."""
    if tape.itemsize != FLOAT:
        tape.keep(Stored("moe", spec.num_experts * size * FLOAT))  # the router's matrix in fp32
    tape.linear("moe", "feed_forward.router", tape.as_float("moe", x, size), spec.num_experts, itemsize=FLOAT)
    scores = tape.make("moe", spec.num_experts, FLOAT)
    tape.keep(scores, tape.make("moe", spec.num_experts_per_tok, INT64))
    if spec.router.num_groups > 1:
        _groups(tape, spec, scores)
    if spec.router.renormalise:
        tape.keep(tape.make("moe", 1, FLOAT), tape.make("moe", spec.num_experts_per_tok, FLOAT))


def _groups(tape: Tape, spec: MoESpec, scores: Stored) -> None:
    """The best groups, the mask of the others, and by what a group was judged."""
    router = spec.router
    if router.group_score == "max":
        biased = tape.make("moe", spec.num_experts, FLOAT) if router.bias_correction else scores
        tape.keep(biased, tape.make("moe", router.num_groups, FLOAT))
    else:
        tape.keep(tape.make("moe", router.num_groups * 2, INT64))
    tape.keep(tape.make("moe", router.top_groups, INT64), tape.make("moe", router.num_groups, 1))
