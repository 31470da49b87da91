"""What one rank holds of each parameter, by arithmetic. No torch.

Legend: a shape is that of a parameter as `planning.parameters` names it; E features, I intermediate, V vocabulary, X
experts, r the rank of an adapter.

A tensor is cut as `torch.chunk` cuts it, and so as DTensor and FSDP2 do: into pieces of ceil(n / parts) rows, the last
one shorter, or empty where nothing is left. In this order:

1. the pipeline: a rank holds the parameters of its stages (`stages`); a tied matrix stands in the first and the last;
2. experts: a stack (X, ...) over the ep ranks, along X;
3. tensor parallelism: queries, keys, values, gate and up along what they make (dimension -2 of a matrix, 0 of a bias),
   o and down along what they read (dimension -1), embeddings and output matrix along V; of an adapter beside the first
   kind B, beside the second A. Norms, routers, learned positions and the biases of o and down are whole on every rank;
4. ZeRO: what is left, along dimension 0, over the ranks that share one set of shards (`ParallelSpec.shards`; for
   experts those of them that hold the same ones). FSDP2 keeps a shorter piece in the storage of a full one; that
   difference is not part of a tensor's bytes and is told apart (`padding`).
"""

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from intaglio.planning.parameters import Shape
from intaglio.specs.parallel import ParallelSpec

__all__ = ["Rank", "chunk", "computed_shape", "padded_elements", "piece_of", "sharded_shape", "shards_of"]

_COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "q_b_proj", "kv_b_proj")
_ROWS = ("o_proj", "down_proj")
_TABLES = ("embed_tokens", "lm_head")


@dataclass(frozen=True)
class Rank:
    """Where a rank stands in the mesh.

    Attributes:
        pp: which of the pipeline's ranks it is.
        shard: which of those that share one set of shards (of `shard` and `cp` in the mesh).
        tp: which of those that share every matrix.
    """

    pp: int = 0
    shard: int = 0
    tp: int = 0


def chunk(size: int, parts: int, index: int) -> int:
    """Rows of a piece, of `size` rows cut as `torch.chunk` does; 0 where there are fewer pieces."""
    step = -(-size // parts)
    return max(0, min(step, size - step * index))


def computed_shape(name: str, shape: Shape, layout: ParallelSpec, rank: Rank) -> Shape:
    """What a rank computes with: its part by experts and by tensor parallelism."""
    if layout.ep > 1 and _of_experts(name):
        shape = _cut(shape, 0, layout.ep, rank.shard // layout.cp % layout.ep)
    dimension = _tensor_dimension(name, len(shape)) if layout.tp > 1 else None
    return shape if dimension is None else _cut(shape, dimension, layout.tp, rank.tp)


def sharded_shape(name: str, computed: Shape, layout: ParallelSpec, rank: Rank) -> Shape:
    """What of that it keeps between steps."""
    return _cut(computed, 0, shards_of(name, layout), piece_of(name, layout, rank)) if computed else computed


def piece_of(name: str, layout: ParallelSpec, rank: Rank) -> int:
    """Which of the pieces of a parameter a rank has; ranks of ep stand next to each other in dp."""
    if layout.shards == 1:
        return 0
    if shards_of(name, layout) == layout.shards:
        return rank.shard
    data, context = divmod(rank.shard, layout.cp)
    return data // layout.ep * layout.cp + context


def shards_of(name: str, layout: ParallelSpec) -> int:
    """Ranks that share a parameter."""
    return max(layout.shards // layout.ep, 1) if layout.ep > 1 and _of_experts(name) else layout.shards


def padded_elements(name: str, computed: Shape, layout: ParallelSpec) -> int:
    """Elements of the storage that FSDP2 keeps for a rank's part of it: those of the longest part."""
    return prod(_cut(computed, 0, shards_of(name, layout), 0)) if computed else 1


def _cut(shape: Shape, dimension: int, parts: int, index: int) -> Shape:
    place = dimension % len(shape)
    return (*shape[:place], chunk(shape[place], parts, index), *shape[place + 1 :])


def _of_experts(name: str) -> bool:
    return ".experts." in name


@lru_cache(maxsize=8192)
def _tensor_dimension(name: str, dimensions: int) -> int | None:
    """The dimension that tensor parallelism cuts, if it cuts any."""
    parts = name.split(".")
    if parts[0] in _TABLES:
        return 0
    module = next((part for part in parts if part in _COLUMNS or part in _ROWS), None)
    if module is None:
        return None
    last = parts[-1]
    if module in _COLUMNS:
        return None if last == "lora_A" else -2 if dimensions > 1 else 0
    return None if last == "lora_B" or dimensions == 1 else -1
