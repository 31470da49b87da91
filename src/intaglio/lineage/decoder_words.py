"""A decoder's parts in a few words, and one layer as a small picture."""

from collections import Counter

from intaglio.specs import (
    AttentionSpec,
    BlockSpec,
    CycleSpec,
    DecoderSpec,
    FeedForwardSpec,
    LatentAttentionSpec,
    LayerNormSpec,
    MoESpec,
    NormSpec,
    RotarySpec,
    SwishSpec,
)

__all__ = [
    "attention_word",
    "embeddings_in_words",
    "feed_forward_word",
    "layer_picture",
    "layers_in_words",
    "norm_word",
    "output_in_words",
    "parts_in_words",
    "typical_block",
]

GATED = {"sigmoid": "GLU", "gelu": "GEGLU", "gelu_tanh": "GEGLU", "silu": "SwiGLU", "relu": "ReGLU", "relu2": "ReGLU²"}
PLAIN = {"sigmoid": "sigmoid", "gelu": "GELU", "gelu_tanh": "GELU", "silu": "SiLU", "relu": "ReLU", "relu2": "ReLU²"}


def parts_in_words(spec: DecoderSpec) -> list[str]:
    """What a typical layer is made of, such as post-LayerNorm, learned, GELU, MHA 12."""
    block = typical_block(spec)
    words = [f"{block.placement}-{norm_word(block.norm)}", _positions_word(spec, block)]
    words += [feed_forward_word(block.feed_forward), attention_word(block.attention)]
    if isinstance(block.attention, AttentionSpec) and block.attention.qk_norm:
        words.append("QK-norm")
    return words + _window_words(spec)


def typical_block(spec: DecoderSpec) -> BlockSpec:
    """The layer that comes most often."""
    return Counter(spec.blocks).most_common(1)[0][0]


def _positions_word(spec: DecoderSpec, block: BlockSpec) -> str:
    if spec.positions:
        return spec.positions.kind
    rope = block.attention.rope
    if not rope:
        return "no positions"
    return f"rotary ({rope.scaling.kind})" if rope.scaling else "rotary"


def _window_words(spec: DecoderSpec) -> list[str]:
    windows = [block.attention.window for block in spec.blocks if block.attention.window]
    if not windows:
        return []
    share = "" if len(windows) == spec.num_layers else f" in {len(windows)}/{spec.num_layers}"
    return [f"window {max(windows)}{share}"]


def norm_word(norm: NormSpec) -> str:
    """LayerNorm or RMSNorm."""
    return "LayerNorm" if isinstance(norm, LayerNormSpec) else "RMSNorm"


def attention_word(attention: AttentionSpec | LatentAttentionSpec) -> str:
    """The kind of attention with its query heads, and its key/value heads where they differ: GQA 32:8."""
    heads = attention.num_heads
    if isinstance(attention, LatentAttentionSpec):
        return f"MLA {heads}"
    if attention.kv_heads == heads:
        return f"MHA {heads}"
    return f"{'MQA' if attention.kv_heads == 1 else 'GQA'} {heads}:{attention.kv_heads}"


def feed_forward_word(feed_forward: FeedForwardSpec | MoESpec) -> str:
    """The activation, named after its gate where it has one; a mixture says how many experts of how many."""
    if isinstance(feed_forward, MoESpec):
        shared = "+shared" if feed_forward.shared else ""
        chosen = f"{feed_forward.num_experts_per_tok}/{feed_forward.num_experts}"
        return f"{feed_forward_word(feed_forward.expert)} MoE {chosen}{shared}"
    if isinstance(feed_forward.activation, SwishSpec):
        return "gated Swish" if feed_forward.gated else "Swish"
    return (GATED if feed_forward.gated else PLAIN)[feed_forward.activation]


def layer_picture(block: BlockSpec) -> str:
    """One layer: the residual path from left to right, what hangs under it, and where the norm stands."""
    norm = norm_word(block.norm)
    before = [norm] if "before" in block.norm_places else []
    after = [norm] if "after" in block.norm_places else []
    names = attention_word(block.attention), feed_forward_word(block.feed_forward)
    branches = [" ─ ".join([*before, name, *after]) for name in names]
    if block.placement == "parallel":
        return _side_by_side(branches)
    outside = f" {norm} ─" if "outside" in block.norm_places else "─"
    road, under = "x ─", "   "
    for branch in branches:
        road += f"┬{'─' * (len(branch) + 4)}+{'─' if outside != '─' else ''}{outside}"
        under += f"└─ {branch} ─┘{' ' * (len(road) - len(under) - len(branch) - 6)}"
    return f"{road}▶\n{under.rstrip()}"


def _side_by_side(branches: list[str]) -> str:
    width = max(map(len, branches))
    above, below = (branch + " " + "─" * (width - len(branch)) for branch in branches)
    return f"x ─┬{'─' * (width + 4)}+─▶\n   ├─ {above}─┤\n   └─ {below}─┘"


def embeddings_in_words(spec: DecoderSpec) -> str:
    """Vocabulary, width, positions and the output matrix."""
    words = [f"{spec.vocab_size:,} tokens, {spec.hidden_size:,} wide"]
    if spec.embedding_scale is not None:
        words.append(f"scaled by {spec.embedding_scale:.4g}")
    if spec.positions:
        words.append(f"{spec.positions.kind} positions")
    words.append(f"up to {spec.context_limit:,} long")
    words.append(output_in_words(spec.tie_embeddings))
    return ", ".join(words)


def output_in_words(tied: bool) -> str:
    """Whose matrix makes the logits."""
    return "tied to the output" if tied else "an output matrix of its own"


def layers_in_words(spec: DecoderSpec) -> list[tuple[str, str]]:
    """(how many, what) for each kind of layer in a row; the layers of a cycle stand indented under it."""
    lines = []
    for entry in spec.layers:
        if isinstance(entry, CycleSpec):
            lines.append((f"{entry.repeat} x", "in turn:"))
            lines += [(f"  {block.repeat} x", _block_in_words(block)) for block in entry.pattern]
        else:
            lines.append((f"{entry.repeat} x", _block_in_words(entry)))
    return lines


def _block_in_words(block: BlockSpec) -> str:
    attention = block.attention
    width = attention.width if isinstance(attention, AttentionSpec) else attention.qk_head_dim
    words = [f"{block.placement}-{norm_word(block.norm)}", f"{attention_word(attention)}, heads of {width}"]
    if isinstance(attention, LatentAttentionSpec):
        words.append(f"latent of {attention.kv_lora_rank} + {attention.qk_rope_head_dim}")
    if attention.rope:
        words.append(_rope_in_words(attention.rope))
    if attention.window:
        words.append(f"window {attention.window}")
    if isinstance(attention, AttentionSpec):
        words += _extras_in_words(attention)
    return f"{', '.join(words)}; {_feed_forward_in_words(block.feed_forward)}"


def _rope_in_words(rope: RotarySpec) -> str:
    words = f"rotary base {rope.theta:,.0f}"
    return f"{words} ({rope.scaling.kind} x{rope.scaling.factor:g})" if rope.scaling else words


def _extras_in_words(attention: AttentionSpec) -> list[str]:
    bias = "".join(name for name in "qkvo" if getattr(attention.bias, name))
    words = [f"QK-norm over each {attention.qk_norm.over}"] if attention.qk_norm else []
    words += [f"bias on {bias}"] if bias else []
    return words + ([f"scores capped at {attention.softcap:g}"] if attention.softcap else [])


def _feed_forward_in_words(feed_forward: FeedForwardSpec | MoESpec) -> str:
    if isinstance(feed_forward, FeedForwardSpec):
        bias = ", with bias" if feed_forward.bias else ""
        return f"{feed_forward_word(feed_forward)} {feed_forward.intermediate_size:,}{bias}"
    words = f"{feed_forward.num_experts_per_tok} of {feed_forward.num_experts} experts"
    words += f" ({_feed_forward_in_words(feed_forward.expert)})"
    return words + (f" and a shared one of {feed_forward.shared.intermediate_size:,}" if feed_forward.shared else "")
