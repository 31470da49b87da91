"""The encoder-decoder Transformer of 2017: one stack reads the source, another writes the target and looks back at it.

Vaswani et al. 2017, arXiv 1706.03762. The paper's own form is post-norm LayerNorm and ReLU with sinusoidal positions,
but both stacks are made of `BlockSpec`s, so that any other form is another spec.
"""

from functools import cached_property
from typing import Any, Literal

from pydantic import Field, model_validator

from intaglio.specs.attention import AttentionSpec
from intaglio.specs.base import Spec
from intaglio.specs.decoder import (
    BlockSpec,
    LayerEntry,
    blocks_of,
    closing_norm,
    group_blocks,
    longest_context,
    write_out,
)
from intaglio.specs.norm import NormSpec
from intaglio.specs.position import PositionsSpec, SinusoidalPositionsSpec

__all__ = ["EncoderDecoderSpec", "StackSpec", "cross_attention_of"]


class StackSpec(Spec):
    """The layers of one side; `layers` and `final_norm` as in `DecoderSpec`."""

    layers: tuple[LayerEntry, ...] = Field(min_length=1)
    final_norm: NormSpec | None = None

    def resolved(self, hidden_size: int) -> "StackSpec":
        """The same with every size explicit and its final norm said."""
        blocks = write_out(self.layers, hidden_size)
        norm = self.final_norm if "final_norm" in self.model_fields_set else closing_norm(blocks)
        return StackSpec(layers=group_blocks(blocks), final_norm=norm)

    def plain(self) -> dict[str, Any]:
        """As of every spec; `final_norm` is always said, since what it is by default depends on the layers."""
        return {**super().plain(), "final_norm": self.final_norm.plain() if self.final_norm else None}

    @cached_property
    def blocks(self) -> tuple[BlockSpec, ...]:
        """One entry per layer."""
        return blocks_of(self.layers)


class EncoderDecoderSpec(Spec):
    """A source is read whole, a target is written token by token, both over one vocabulary.

    Attributes:
        max_position_embeddings: tokens of a source, and of a target with the start token before it.
        positions: added to the embeddings on both sides; None where attention is rotary.
        embedding_scale: embeddings are multiplied by it (the paper: sqrt(hidden_size)).
        encoder: its attention sees the whole source.
        decoder: its attention is causal; each layer then attends to what the encoder made, with attention of the same
            sizes (no window, no rotary positions, since a target's places are not a source's).
        dropout: in training, of what each sublayer adds and of embeddings plus positions (section 5.4).
        tie_embeddings: source, target and output share one matrix (section 3.4); else each has its own.
        logits_bias: a fixed number is added to each logit (Marian's `final_logits_bias`); not trained.
        start_token_id: what stands before the first token of a target.
    """

    kind: Literal["encoder_decoder"] = "encoder_decoder"
    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    max_position_embeddings: int = Field(gt=0)
    positions: PositionsSpec | None = SinusoidalPositionsSpec()
    embedding_scale: float | None = None
    encoder: StackSpec
    decoder: StackSpec
    dropout: float = Field(0.0, ge=0, lt=1)
    tie_embeddings: bool = False
    logits_bias: bool = False
    start_token_id: int = Field(ge=0)

    @model_validator(mode="after")
    def _write_out(self) -> "EncoderDecoderSpec":
        """Fill every size in, so that equal models are equal, and refuse what has no meaning here."""
        if isinstance(self.positions, SinusoidalPositionsSpec) and self.hidden_size % 2:
            raise ValueError(f"hidden_size {self.hidden_size} is not even, which sinusoidal positions need")
        if self.start_token_id >= self.vocab_size:
            raise ValueError(f"start_token_id {self.start_token_id} is beyond the vocabulary of {self.vocab_size}")
        for side in ("encoder", "decoder"):
            object.__setattr__(self, side, getattr(self, side).resolved(self.hidden_size))
        _check(self.encoder.blocks, self.decoder.blocks)
        return self

    def plain(self) -> dict[str, Any]:
        """As of every spec; each side says its final norm."""
        return {**super().plain(), "encoder": self.encoder.plain(), "decoder": self.decoder.plain()}

    @property
    def num_layers(self) -> int:
        """Of both sides."""
        return len(self.encoder.blocks) + len(self.decoder.blocks)

    @property
    def context_limit(self) -> int:
        """Tokens a source may have, and a target."""
        return longest_context(self.max_position_embeddings, (*self.encoder.blocks, *self.decoder.blocks))

    def num_parameters(self) -> int:
        """Parameters of the built model; tied embeddings count once, the fixed bias of the logits does not."""
        return self._parameters(active=False)

    def num_active_parameters(self) -> int:
        """Parameters that a token of the source and one of the target meet together."""
        return self._parameters(active=True)

    def _parameters(self, active: bool) -> int:
        size = self.hidden_size
        embeddings = self.vocab_size * size * (1 if self.tie_embeddings else 3)
        learned = self.positions is not None and self.positions.kind == "learned"
        positions = 2 * self.max_position_embeddings * size if learned else 0
        norms = sum(side.final_norm.num_parameters(size) for side in (self.encoder, self.decoder) if side.final_norm)
        blocks = (*self.encoder.blocks, *self.decoder.blocks)
        layers = sum(block.num_parameters(size, active=active) for block in blocks)
        return embeddings + positions + norms + layers + sum(self._cross_parameters(b) for b in self.decoder.blocks)

    def _cross_parameters(self, block: BlockSpec) -> int:
        """What a decoder's layer has beside a block of its spec: the attention to the source, and its norms."""
        norms = block.num_norms(sublayers=1) * block.norm.num_parameters(self.hidden_size)
        return cross_attention_of(block).num_parameters(self.hidden_size) + norms

    def flops_per_token(self, context: int) -> int:
        """Forward FLOPs of one token of the source and one of the target, `context` tokens each.

        Counted as in `DecoderSpec.flops_per_token`: matrix products only, masked scores included.
        """
        size = self.hidden_size
        blocks = (*self.encoder.blocks, *self.decoder.blocks)
        flops = sum(block.flops_per_token(size, context) for block in blocks)
        for cross in map(cross_attention_of, self.decoder.blocks):
            flops += 2 * cross.matmul_weights(size) + cross.score_flops(context)
        return flops + 2 * self.vocab_size * size

    def kv_bytes_per_token(self, dtype: str = "bfloat16") -> int:
        """Bytes that one more token of the target adds to the cache, in all layers (until windows are full)."""
        return sum(block.attention.kv_bytes_per_token(dtype) for block in self.decoder.blocks)

    def kv_cache_bytes(self, context: int, dtype: str = "bfloat16") -> int:
        """Bytes of the cache of one pair, `context` tokens on each side: of the target, and of the source it reads."""
        attentions = [block.attention for block in self.decoder.blocks]
        own = sum(a.cached_tokens(context) * a.kv_bytes_per_token(dtype) for a in attentions)
        return own + context * sum(a.kv_bytes_per_token(dtype) for a in attentions)


def cross_attention_of(block: BlockSpec) -> AttentionSpec:
    """The attention to the source in a decoder's layer: the layer's own, which sees everything and turns nothing."""
    assert isinstance(block.attention, AttentionSpec)
    return block.attention.updated(rope=None, window=None)


def _check(encoder: tuple[BlockSpec, ...], decoder: tuple[BlockSpec, ...]) -> None:
    if not all(isinstance(block.attention, AttentionSpec) for block in (*encoder, *decoder)):
        raise ValueError("latent attention has no form here; use kind attention")
    if any(block.attention.window for block in encoder):
        raise ValueError("an encoder sees the whole source: its attention has no window")
    if any(block.placement == "parallel" for block in decoder):
        raise ValueError("placement parallel leaves the attention to the source no place in a decoder's layer")
