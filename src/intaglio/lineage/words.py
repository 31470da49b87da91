"""A model's parts in a few words, and one layer as a small picture."""

from collections import Counter

from intaglio.specs import (
    AttentionSpec,
    BlockSpec,
    DecoderSpec,
    FeedForwardSpec,
    LatentAttentionSpec,
    LayerNormSpec,
    MoESpec,
    NormSpec,
    SwishSpec,
)

__all__ = ["attention_words", "feed_forward_words", "layer_picture", "norm_word", "parts_in_words", "typical_block"]

GATED = {"sigmoid": "GLU", "gelu": "GEGLU", "gelu_tanh": "GEGLU", "silu": "SwiGLU", "relu": "ReGLU"}
PLAIN = {"sigmoid": "sigmoid", "gelu": "GELU", "gelu_tanh": "GELU", "silu": "SiLU", "relu": "ReLU"}


def parts_in_words(spec: DecoderSpec) -> list[str]:
    """What a typical layer is made of, such as post-norm, learned, GELU, MHA."""
    block = typical_block(spec)
    words = [f"{block.placement}-norm", norm_word(block.norm), _positions_word(spec, block)]
    words += [feed_forward_words(block.feed_forward), attention_words(block.attention)]
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
    share = "" if len(windows) == spec.num_layers else f" in {len(windows)} of {spec.num_layers}"
    return [f"window {max(windows)}{share}"]


def norm_word(norm: NormSpec) -> str:
    """LayerNorm or RMSNorm."""
    return "LayerNorm" if isinstance(norm, LayerNormSpec) else "RMSNorm"


def attention_words(attention: AttentionSpec | LatentAttentionSpec) -> str:
    """The kind of attention with its query heads, and its key/value heads where they differ: GQA 32:8."""
    heads = attention.num_heads
    if isinstance(attention, LatentAttentionSpec):
        return f"MLA {heads}"
    if attention.kv_heads == heads:
        return f"MHA {heads}"
    return f"{'MQA' if attention.kv_heads == 1 else 'GQA'} {heads}:{attention.kv_heads}"


def feed_forward_words(feed_forward: FeedForwardSpec | MoESpec) -> str:
    """The activation, named after its gate where it has one; a mixture says how many experts of how many."""
    if isinstance(feed_forward, MoESpec):
        shared = "+shared" if feed_forward.shared else ""
        return f"MoE {feed_forward.num_experts_per_tok}/{feed_forward.num_experts}{shared}"
    if isinstance(feed_forward.activation, SwishSpec):
        return "gated Swish" if feed_forward.gated else "Swish"
    return (GATED if feed_forward.gated else PLAIN)[feed_forward.activation]


def layer_picture(block: BlockSpec) -> str:
    """One layer: the residual path from left to right, what hangs under it, and where the norm stands."""
    norm = norm_word(block.norm)
    before = [norm] if block.placement in ("pre", "sandwich", "parallel") else []
    after = [norm] if block.placement in ("residual", "sandwich") else []
    names = attention_words(block.attention), feed_forward_words(block.feed_forward)
    branches = [" ─ ".join([*before, name, *after]) for name in names]
    if block.placement == "parallel":
        return _side_by_side(branches)
    outside = f" {norm} ─" if block.placement == "post" else "─"
    road, under = "x ─", "   "
    for branch in branches:
        road += f"┬{'─' * (len(branch) + 4)}+{'─' if outside != '─' else ''}{outside}"
        under += f"└─ {branch} ─┘{' ' * (len(road) - len(under) - len(branch) - 6)}"
    return f"{road}▶\n{under.rstrip()}"


def _side_by_side(branches: list[str]) -> str:
    width = max(map(len, branches))
    above, below = (branch + " " + "─" * (width - len(branch)) for branch in branches)
    return f"x ─┬{'─' * (width + 4)}+─▶\n   ├─ {above}─┤\n   └─ {below}─┘"
