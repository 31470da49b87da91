"""Attention: who looks at what, with how many keys and values. Arithmetic only.

Legend: H query heads, K key/value heads, D head width, C context length (tokens).
FLOPs count a multiply-add as two and masks in full, as `torch.utils.flop_counter` does.
"""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from intaglio.specs.base import Spec, dtype_bytes, kind_or
from intaglio.specs.norm import NormSpec
from intaglio.specs.position import RotarySpec, YarnScaling

__all__ = ["AttentionSpec", "LatentAttentionSpec", "ProjectionBias", "QKNormSpec", "SelfAttentionSpec"]


class ProjectionBias(Spec):
    """Which of the four projections add a bias."""

    q: bool = False
    k: bool = False
    v: bool = False
    o: bool = False


class QKNormSpec(Spec):
    """Queries and keys are normalised before they meet.

    Attributes:
        over: each `head` by itself (Qwen3, Gemma 3), or the whole `projection` at once (OLMo 2).
    """

    norm: NormSpec
    over: Literal["head", "projection"] = "head"


class AttentionSpec(Spec):
    """Multi-head, multi-query (K = 1) and grouped-query attention (Shazeer 2019; Ainslie et al. 2023).

    Attributes:
        num_kv_heads: None means one per query head (multi-head attention).
        head_dim: None means hidden_size / num_heads; it is filled in when the attention stands in a model.
        window: a token sees itself and the window - 1 tokens before it; None sees all (banded, sliding window).
        scale: what scores are multiplied by; None means 1 / sqrt(head_dim), 1.0 means unscaled (GPT-Neo).
        softcap: scores become softcap * tanh(score / softcap) (Gemma 2).
    """

    kind: Literal["attention"] = "attention"
    num_heads: int = Field(gt=0)
    num_kv_heads: int | None = Field(None, gt=0)
    head_dim: int | None = Field(None, gt=0)
    rope: RotarySpec | None = None
    window: int | None = Field(None, gt=0)
    qk_norm: QKNormSpec | None = None
    bias: ProjectionBias = ProjectionBias()
    scale: float | None = Field(None, gt=0)
    softcap: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _heads_divide(self) -> "AttentionSpec":
        if self.num_heads % self.kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.kv_heads}")
        if self.rope and self.rope.dim and self.head_dim and self.rope.dim > self.head_dim:
            raise ValueError(f"rope.dim {self.rope.dim} is larger than head_dim {self.head_dim}")
        if self.rope and not self.rope.dim and self.head_dim and self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is not even, which rotary positions need")
        return self

    def resolved(self, hidden_size: int) -> "AttentionSpec":
        """The same attention with `num_kv_heads` and `head_dim` written out."""
        if self.head_dim is None and hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {hidden_size} is not a multiple of num_heads {self.num_heads}; give head_dim"
            )
        head_dim = self.head_dim or hidden_size // self.num_heads
        return self.updated(num_kv_heads=self.kv_heads, head_dim=head_dim)

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    @property
    def width(self) -> int:
        """D; only once the attention stands in a model."""
        assert self.head_dim is not None, "head_dim is filled in by the model's spec"
        return self.head_dim

    @property
    def softmax_scale(self) -> float:
        return self.scale if self.scale is not None else self.width**-0.5

    def num_parameters(self, hidden_size: int) -> int:
        """Weights, biases and norms of this attention."""
        q_size, kv_size = self.num_heads * self.width, self.kv_heads * self.width
        bias = self.bias.q * q_size + (self.bias.k + self.bias.v) * kv_size + self.bias.o * hidden_size
        return self.matmul_weights(hidden_size) + bias + self._qk_norm_parameters(q_size, kv_size)

    def _qk_norm_parameters(self, q_size: int, kv_size: int) -> int:
        if not self.qk_norm:
            return 0
        sizes = (self.width, self.width) if self.qk_norm.over == "head" else (q_size, kv_size)
        return sum(self.qk_norm.norm.num_parameters(size) for size in sizes)

    def matmul_weights(self, hidden_size: int) -> int:
        """Weights that multiply every token: Q and O are (hidden, H*D), K and V (hidden, K*D)."""
        return 2 * hidden_size * self.width * (self.num_heads + self.kv_heads)

    def score_flops(self, context: int) -> int:
        """FLOPs of one token's scores and weighted sum over `context` tokens: 2*C*H*D each."""
        return 4 * context * self.num_heads * self.width

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes one more token adds to this layer's cache: 2 (K and V) * K heads * D."""
        return 2 * self.kv_heads * self.width * dtype_bytes(dtype)

    def cached_tokens(self, context: int) -> int:
        """Tokens the cache must hold for a sequence of `context`: a window bounds it."""
        return min(context, self.window or context)


class LatentAttentionSpec(Spec):
    """Multi-head latent attention: K and V are rebuilt from one small latent (DeepSeek-V2, arXiv 2405.04434, 2.1).

    Attributes:
        q_lora_rank: None projects queries directly (V2-Lite).
        kv_lora_rank: width of the cached latent, shared by all heads.
        qk_nope_head_dim, qk_rope_head_dim: a key is a part from the latent and a rotary part shared by all heads.
        norm: stands behind each latent.
        bias: of the two down-projections and of the output.
    """

    kind: Literal["latent_attention"] = "latent_attention"
    num_heads: int = Field(gt=0)
    q_lora_rank: int | None = Field(None, gt=0)
    kv_lora_rank: int = Field(gt=0)
    qk_nope_head_dim: int = Field(gt=0)
    qk_rope_head_dim: int = Field(gt=0, multiple_of=2)
    v_head_dim: int = Field(gt=0)
    norm: NormSpec
    rope: RotarySpec = RotarySpec()
    bias: bool = False

    window: None = None
    softcap: None = None

    @model_validator(mode="after")
    def _one_rotary_width(self) -> "LatentAttentionSpec":
        if self.rope.dim:
            raise ValueError(f"rope.dim {self.rope.dim}: qk_rope_head_dim {self.qk_rope_head_dim} says what is turned")
        return self

    def resolved(self, hidden_size: int) -> "LatentAttentionSpec":
        """Itself: every size of latent attention is explicit."""
        return self

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_width(self) -> int:
        """Features cached per token: the latent and the shared rotary key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        """1 / sqrt(qk_head_dim), times YaRN's temperature squared where `mscale_all_dim` moves it here."""
        scaling = self.rope.scaling
        moved = isinstance(scaling, YarnScaling) and scaling.mscale_all_dim
        factor = scaling.temperature(moved) if isinstance(scaling, YarnScaling) and moved else 1.0
        return float(self.qk_head_dim**-0.5 * factor**2)

    def num_parameters(self, hidden_size: int) -> int:
        """Weights, biases and norms of this attention."""
        norms = self.norm.num_parameters(self.kv_lora_rank)
        bias = self.latent_width + hidden_size
        if self.q_lora_rank:
            norms += self.norm.num_parameters(self.q_lora_rank)
            bias += self.q_lora_rank
        return self.matmul_weights(hidden_size) + norms + self.bias * bias

    def matmul_weights(self, hidden_size: int) -> int:
        """Weights that multiply every token in the expanded form (training and prefill)."""
        q_size = self.num_heads * self.qk_head_dim
        rank = self.q_lora_rank
        queries = rank * (hidden_size + q_size) if rank else hidden_size * q_size
        keys_values = self.kv_lora_rank * self.num_heads * (self.qk_nope_head_dim + self.v_head_dim)
        output = self.num_heads * self.v_head_dim * hidden_size
        return queries + hidden_size * self.latent_width + keys_values + output

    def score_flops(self, context: int) -> int:
        """FLOPs of one token's scores (2*C*H*qk_head_dim) and weighted sum (2*C*H*v_head_dim)."""
        return 2 * context * self.num_heads * (self.qk_head_dim + self.v_head_dim)

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes one more token adds to this layer's cache: the latent and the rotary key, once for all heads."""
        return self.latent_width * dtype_bytes(dtype)

    def cached_tokens(self, context: int) -> int:
        """Tokens the cache must hold for a sequence of `context`."""
        return context


SelfAttentionSpec = Annotated[
    Annotated[AttentionSpec, Tag("attention")] | Annotated[LatentAttentionSpec, Tag("latent_attention")],
    Discriminator(kind_or("attention")),
]
