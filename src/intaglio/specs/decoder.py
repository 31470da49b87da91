"""The decoder-only model: GPT-1 to today. A small tree of parts, and what follows from it by arithmetic."""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from intaglio.specs.attention import SelfAttentionSpec
from intaglio.specs.base import Spec
from intaglio.specs.feed_forward import FeedForwardLayerSpec
from intaglio.specs.norm import NormSpec
from intaglio.specs.position import DynamicScaling, PositionsSpec, SinusoidalPositionsSpec

__all__ = [
    "BlockSpec",
    "CycleSpec",
    "DecoderSpec",
    "LayerEntry",
    "NormPlace",
    "Placement",
    "blocks_of",
    "closing_norm",
    "group_blocks",
    "longest_context",
    "write_out",
]

Placement = Literal["post", "pre", "residual", "sandwich", "parallel"]
NormPlace = Literal["before", "after", "outside"]

_NORM_PLACES: Final[dict[Placement, tuple[NormPlace, ...]]] = {
    "post": ("outside",),
    "pre": ("before",),
    "residual": ("after",),
    "sandwich": ("before", "after"),
    "parallel": ("before",),
}


class BlockSpec(Spec):
    """One layer, `repeat` times: attention and feed-forward on a residual stream.

    Attributes:
        placement: where the norm stands around each of the two, f being either:
            post: norm(x + f(x)); pre: x + f(norm(x)); residual: x + norm(f(x));
            sandwich: x + norm(f(norm(x))); parallel: x + attention(norm(x)) + feed_forward(norm(x)).
    """

    repeat: int = Field(1, gt=0, le=10_000)
    norm: NormSpec
    placement: Placement = "pre"
    attention: SelfAttentionSpec
    feed_forward: FeedForwardLayerSpec

    @property
    def norm_places(self) -> tuple[NormPlace, ...]:
        """Where norms stand around each f: before it, after it, outside the sum."""
        return _NORM_PLACES[self.placement]

    def num_norms(self, sublayers: int = 2) -> int:
        """Norms of so many sublayers."""
        return sublayers * len(self.norm_places)

    def num_parameters(self, hidden_size: int, *, active: bool = False) -> int:
        """Parameters of one such layer; `active` counts only the experts a token meets."""
        feed_forward = self.feed_forward
        count = feed_forward.num_active_parameters if active else feed_forward.num_parameters
        norms = self.num_norms() * self.norm.num_parameters(hidden_size)
        return self.attention.num_parameters(hidden_size) + count(hidden_size) + norms

    def flops_per_token(self, hidden_size: int, context: int) -> int:
        """Forward FLOPs of one token in a sequence of `context`."""
        weights = self.attention.matmul_weights(hidden_size) + self.feed_forward.matmul_weights(hidden_size)
        return 2 * weights + self.attention.score_flops(context)


class CycleSpec(Spec):
    """Layers that come in turn: `pattern`, `repeat` times (five local and one global, dense and banded)."""

    repeat: int = Field(1, gt=0, le=10_000)
    pattern: tuple[BlockSpec, ...] = Field(min_length=1)


def _entry_tag(value: Any) -> str:
    cycle = "pattern" in value if isinstance(value, dict) else isinstance(value, CycleSpec)
    return "cycle" if cycle else "block"


LayerEntry = Annotated[
    Annotated[BlockSpec, Tag("block")] | Annotated[CycleSpec, Tag("cycle")], Discriminator(_entry_tag)
]


class DecoderSpec(Spec):
    """A decoder-only language model.

    `layers` is a repeating pattern; `blocks` is the same written out, one entry per layer, every size explicit.

    Attributes:
        positions: added to the embeddings; None where attention is rotary.
        embedding_scale: embeddings are multiplied by it (Gemma: sqrt(hidden_size)).
        final_norm: after the last layer; left out, it is the last layer's own, or None where that ends in one (post).
        tie_embeddings: the output matrix is the embedding matrix.
        logit_softcap: logits become softcap * tanh(logit / softcap) (Gemma 2).
    """

    kind: Literal["decoder"] = "decoder"
    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    max_position_embeddings: int = Field(gt=0)
    positions: PositionsSpec | None = None
    embedding_scale: float | None = None
    layers: tuple[LayerEntry, ...] = Field(min_length=1)
    final_norm: NormSpec | None = None
    tie_embeddings: bool = False
    logit_softcap: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _write_out(self) -> "DecoderSpec":
        """Fill every size in and put the pattern into its one canonical form, so that equal models are equal."""
        if isinstance(self.positions, SinusoidalPositionsSpec) and self.hidden_size % 2:
            raise ValueError(f"hidden_size {self.hidden_size} is not even, which sinusoidal positions need")
        blocks = write_out(self.layers, self.hidden_size)
        object.__setattr__(self, "layers", group_blocks(blocks))
        if "final_norm" not in self.model_fields_set:
            object.__setattr__(self, "final_norm", closing_norm(blocks))
        return self

    def plain(self) -> dict[str, Any]:
        """As of every spec; `final_norm` is always said, since what it is by default depends on the layers."""
        return {**super().plain(), "final_norm": self.final_norm.plain() if self.final_norm else None}

    @cached_property
    def blocks(self) -> tuple[BlockSpec, ...]:
        """One entry per layer."""
        return blocks_of(self.layers)

    @property
    def num_layers(self) -> int:
        return len(self.blocks)

    @property
    def context_limit(self) -> int:
        """Tokens a sequence may have: `max_position_embeddings`, times the factor of dynamic rotary scaling."""
        return longest_context(self.max_position_embeddings, self.blocks)

    def num_parameters(self) -> int:
        """Parameters of the built model; tied embeddings count once."""
        return self._parameters(active=False)

    def num_active_parameters(self) -> int:
        """Parameters one token meets: of a mixture's experts only the chosen ones."""
        return self._parameters(active=True)

    def _parameters(self, active: bool) -> int:
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        learned = self.positions is not None and self.positions.kind == "learned"
        positions = self.max_position_embeddings * self.hidden_size if learned else 0
        final = self.final_norm.num_parameters(self.hidden_size) if self.final_norm else 0
        blocks = sum(block.num_parameters(self.hidden_size, active=active) for block in self.blocks)
        return embeddings + positions + final + blocks

    def flops_per_token(self, context: int) -> int:
        """Forward FLOPs per token of a sequence of `context` tokens, causal and banded attention counted in full.

        That is how `torch.utils.flop_counter` counts: matrix products only, masked scores included.
        """
        blocks = sum(block.flops_per_token(self.hidden_size, context) for block in self.blocks)
        return blocks + 2 * self.vocab_size * self.hidden_size

    def kv_bytes_per_token(self, dtype: str = "bfloat16") -> int:
        """Bytes one more token adds to the KV cache, in all layers (until windows are full)."""
        return sum(block.attention.kv_bytes_per_token(dtype) for block in self.blocks)

    def kv_cache_bytes(self, context: int, dtype: str = "bfloat16") -> int:
        """Bytes of the KV cache of one sequence of `context` tokens; windowed layers keep only their window."""
        attentions = [block.attention for block in self.blocks]
        return sum(a.cached_tokens(context) * a.kv_bytes_per_token(dtype) for a in attentions)


def blocks_of(layers: Sequence[BlockSpec | CycleSpec]) -> tuple[BlockSpec, ...]:
    """The pattern as one entry per layer."""
    return tuple(block for entry in layers for block in _expand(entry))


def write_out(layers: Sequence[BlockSpec | CycleSpec], hidden_size: int) -> tuple[BlockSpec, ...]:
    """One entry per layer, every size explicit."""
    return tuple(
        block.updated(repeat=1, attention=block.attention.resolved(hidden_size)) for block in blocks_of(layers)
    )


def closing_norm(blocks: Sequence[BlockSpec]) -> NormSpec | None:
    """What stands after the last layer by default: a straight residual path needs a norm at its end."""
    return None if "outside" in blocks[-1].norm_places else blocks[-1].norm


def longest_context(max_positions: int, blocks: Sequence[BlockSpec]) -> int:
    """`max_positions`, times the factor of dynamic rotary scaling."""
    ropes = [getattr(block.attention, "rope", None) for block in blocks]
    factors = [rope.scaling.factor for rope in ropes if rope and isinstance(rope.scaling, DynamicScaling)]
    return int(max_positions * min(factors, default=1.0))


def _expand(entry: BlockSpec | CycleSpec) -> list[BlockSpec]:
    if isinstance(entry, BlockSpec):
        return [entry.updated(repeat=1)] * entry.repeat
    return [block for _ in range(entry.repeat) for one in entry.pattern for block in _expand(one)]


def group_blocks(blocks: Sequence[BlockSpec]) -> tuple[BlockSpec | CycleSpec, ...]:
    """One form for all ways to write the same layers: the shortest cycle of runs that comes twice from the start, and
    what is left, as runs of equal layers."""
    runs = _runs(blocks)
    for period in range(2, 9):
        repeats = _whole_cycles(runs, period)
        if repeats > 1:
            rest = runs[period * repeats :]
            return (CycleSpec(repeat=repeats, pattern=tuple(runs[:period])), *rest)
    return tuple(runs)


def _runs(blocks: Sequence[BlockSpec]) -> list[BlockSpec]:
    runs: list[BlockSpec] = []
    for block in blocks:
        if runs and runs[-1].updated(repeat=1) == block:
            runs[-1] = runs[-1].updated(repeat=runs[-1].repeat + 1)
        else:
            runs.append(block)
    return runs


def _whole_cycles(runs: Sequence[BlockSpec], period: int) -> int:
    count = 1
    while runs[count * period : (count + 1) * period] == runs[:period]:
        count += 1
    return count
