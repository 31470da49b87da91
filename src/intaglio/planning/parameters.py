"""The parameters of a decoder by name and shape, as the built module names them."""

from collections.abc import Iterator, Sequence

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

__all__ = ["Shape", "decays", "is_matrix", "parameter_shapes"]

Shape = tuple[int, ...]
Named = Iterator[tuple[str, Shape]]


def parameter_shapes(spec: DecoderSpec) -> dict[str, Shape]:
    """Every parameter of `models.decoder.Decoder(spec)`; a tied output matrix is the embedding, and not named."""
    return dict(_decoder(spec))


def decays(name: str, shape: Sequence[int]) -> bool:
    """Whether it is a matrix in a layer, or a stack of them: what weight decay is for.

    Norms, biases, embeddings, positions, the output matrix and heads are not.
    """
    return len(shape) >= 2 and "layers" in name.split(".")


def is_matrix(name: str, shape: Sequence[int]) -> bool:
    """Whether it is one matrix in a layer, such as Muon steps."""
    return decays(name, shape) and len(shape) == 2


def _decoder(spec: DecoderSpec) -> Named:
    size = spec.hidden_size
    yield "embed_tokens.weight", (spec.vocab_size, size)
    if spec.positions and spec.positions.kind == "learned":
        yield "positions.weight", (spec.max_position_embeddings, size)
    for number, block in enumerate(spec.blocks):
        yield from _within(f"layers.{number}", _block(block, size))
    if spec.final_norm:
        yield from _within("norm", _norm(spec.final_norm, size))
    if not spec.tie_embeddings:
        yield "lm_head.weight", (spec.vocab_size, size)


def _within(prefix: str, parameters: Named) -> Named:
    return ((f"{prefix}.{name}", shape) for name, shape in parameters)


def _block(block: BlockSpec, size: int) -> Named:
    yield from _within("attention", _self_attention(block.attention, size))
    yield from _within("feed_forward", _feed_forward(block.feed_forward, size))
    for sublayer in ("attention_norm", "feed_forward_norm"):
        for place in block.norm_places:
            yield from _within(f"{sublayer}.{place}", _norm(block.norm, size))


def _norm(norm: NormSpec, size: int) -> Named:
    yield "weight", (size,)
    if isinstance(norm, LayerNormSpec) and norm.bias:
        yield "bias", (size,)


def _linear(name: str, inputs: int, outputs: int, bias: bool = False) -> Named:
    yield f"{name}.weight", (outputs, inputs)
    if bias:
        yield f"{name}.bias", (outputs,)


def _self_attention(spec: AttentionSpec | LatentAttentionSpec, size: int) -> Named:
    return _latent(spec, size) if isinstance(spec, LatentAttentionSpec) else _attention(spec, size)


def _attention(spec: AttentionSpec, size: int) -> Named:
    q_size, kv_size = spec.num_heads * spec.width, spec.kv_heads * spec.width
    yield from _linear("q_proj", size, q_size, spec.bias.q)
    yield from _linear("k_proj", size, kv_size, spec.bias.k)
    yield from _linear("v_proj", size, kv_size, spec.bias.v)
    yield from _linear("o_proj", q_size, size, spec.bias.o)
    if spec.qk_norm:
        widths = (spec.width, spec.width) if spec.qk_norm.over == "head" else (q_size, kv_size)
        yield from _within("q_norm", _norm(spec.qk_norm.norm, widths[0]))
        yield from _within("k_norm", _norm(spec.qk_norm.norm, widths[1]))


def _latent(spec: LatentAttentionSpec, size: int) -> Named:
    q_size = spec.num_heads * spec.qk_head_dim
    if spec.q_lora_rank:
        yield from _linear("q_a_proj", size, spec.q_lora_rank, spec.bias)
        yield from _within("q_a_norm", _norm(spec.norm, spec.q_lora_rank))
        yield from _linear("q_b_proj", spec.q_lora_rank, q_size)
    else:
        yield from _linear("q_proj", size, q_size)
    yield from _linear("kv_a_proj", size, spec.latent_width, spec.bias)
    yield from _within("kv_a_norm", _norm(spec.norm, spec.kv_lora_rank))
    yield from _linear("kv_b_proj", spec.kv_lora_rank, spec.num_heads * (spec.qk_nope_head_dim + spec.v_head_dim))
    yield from _linear("o_proj", spec.num_heads * spec.v_head_dim, size, spec.bias)


def _feed_forward(spec: FeedForwardSpec | MoESpec, size: int) -> Named:
    return _mixture(spec, size) if isinstance(spec, MoESpec) else _dense(spec, size)


def _dense(spec: FeedForwardSpec, size: int) -> Named:
    if isinstance(spec.activation, SwishSpec) and spec.activation.learned:
        yield "activation.beta", ()
    if spec.gated:
        yield from _linear("gate_proj", size, spec.intermediate_size, spec.bias)
    yield from _linear("up_proj", size, spec.intermediate_size, spec.bias)
    yield from _linear("down_proj", spec.intermediate_size, size, spec.bias)


def _mixture(spec: MoESpec, size: int) -> Named:
    """The experts' matrices are stacked."""
    yield "router.weight", (spec.num_experts, size)
    for name, shape in _dense(spec.expert, size):
        yield f"experts.{name.removesuffix('.weight')}", (spec.num_experts, *shape)
    if spec.shared:
        yield from _within("shared", _dense(spec.shared, size))
