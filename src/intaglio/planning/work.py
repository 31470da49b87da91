"""What a layer computes for one micro-batch on one rank: products, attention, passes over memory. No torch.

Legend: T tokens that the rank computes, S tokens of a sequence, E features, k experts of a token.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from intaglio.planning.parameters import parameter_shapes
from intaglio.specs import AttentionSpec, BlockSpec, DecoderSpec, MoESpec

__all__ = ["LayerWork", "Product", "causal_context", "layer_work", "matrices_of"]


@dataclass(frozen=True)
class Product:
    """A matrix product: rows of `inputs` features times a matrix, or several matrices with some of the rows each.

    Attributes:
        name: of the matrix in its layer.
        rows: of all matrices.
        inputs, outputs: features.
        matrices: how many.
    """

    name: str
    rows: float
    inputs: int
    outputs: int
    matrices: int = 1

    @property
    def flops(self) -> float:
        """Of the forward; each of the two products of the backward has as many."""
        return 2 * self.rows * self.inputs * self.outputs

    @property
    def weights(self) -> int:
        """Elements."""
        return self.matrices * self.inputs * self.outputs

    def num_bytes(self, itemsize: int) -> float:
        """Read and written once."""
        return itemsize * (self.rows * (self.inputs + self.outputs) + self.weights)


@dataclass(frozen=True)
class LayerWork:
    """What one layer does in a forward, for all tokens.

    Attributes:
        products: with its matrices.
        scores: FLOPs of attention, as a kernel has them that leaves out what is masked.
        normed: elements that pass through a norm.
        summed: elements of the residual stream that something is added to.
        turned: elements of queries and keys that are rotated.
        bent: elements behind an activation; `gated` says whether the other half is multiplied in.
        moved: elements that are sorted by expert and back.
        gated: see `bent`.
        kernels: that are launched, roughly.
    """

    products: tuple[Product, ...]
    scores: float
    normed: float
    summed: float
    turned: float
    bent: float
    moved: float
    gated: bool
    kernels: int


def causal_context(sequence: int, window: int | None = None) -> float:
    """Positions that one of a sequence sees, on the average."""
    seen = min(window or sequence, sequence)
    return (seen * (seen + 1) / 2 + (sequence - seen) * seen) / sequence


@lru_cache(maxsize=4096)
def layer_work(block: BlockSpec, size: int, tokens: float, sequence: int, *, spread: int = 1, ep: int = 1) -> LayerWork:
    """The work of a layer.

    Args:
        block: what this rank has of the layer, see `layouts.local_spec`.
        size: features of the model.
        tokens: T.
        sequence: S.
        spread: ranks that share what lies between the matrices (sequence parallel).
        ep: ranks that share the experts.
    """
    attention, feed_forward = block.attention, block.feed_forward
    rotary = attention.rope is not None
    if isinstance(attention, AttentionSpec):
        heads = (attention.num_heads + attention.kv_heads) * attention.width
        turned = heads * rotary
    else:
        heads, turned = 0, attention.num_heads * attention.qk_rope_head_dim + attention.qk_rope_head_dim
    expert = feed_forward.expert if isinstance(feed_forward, MoESpec) else feed_forward
    chosen = feed_forward.num_experts_per_tok if isinstance(feed_forward, MoESpec) else 1
    shared = feed_forward.shared.intermediate_size if isinstance(feed_forward, MoESpec) and feed_forward.shared else 0
    return LayerWork(
        products=tuple(_products(block, size, tokens, ep)),
        scores=tokens * attention.score_flops(1) * causal_context(sequence, attention.window),
        normed=tokens / spread * size * block.num_norms()
        + tokens * heads * (getattr(attention, "qk_norm", None) is not None),
        summed=tokens / spread * size * 2,
        turned=tokens * turned,
        bent=tokens * (chosen * expert.intermediate_size + shared),
        moved=2 * tokens * chosen * size * isinstance(feed_forward, MoESpec),
        gated=expert.gated,
        kernels=25 + 20 * isinstance(feed_forward, MoESpec),
    )


def _products(block: BlockSpec, size: int, tokens: float, ep: int) -> Iterator[Product]:
    for name, shape in matrices_of(block, size):
        experts = ".experts." in name
        rows = tokens * (
            block.feed_forward.num_experts_per_tok if experts and isinstance(block.feed_forward, MoESpec) else 1
        )
        yield Product(name, rows, shape[-1], shape[-2], max(prod(shape[:-2]) // (ep if experts else 1), 1))


@lru_cache(maxsize=1024)
def matrices_of(block: BlockSpec, size: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Names and shapes of a layer's matrices."""
    one = DecoderSpec(vocab_size=1, hidden_size=size, max_position_embeddings=1, layers=(block,))
    shapes = parameter_shapes(one).items()
    return tuple(
        (name.removeprefix("layers.0."), shape) for name, shape in shapes if "layers" in name and len(shape) > 1
    )
