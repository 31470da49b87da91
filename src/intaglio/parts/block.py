"""One layer: attention and feed-forward on a residual stream, the norm where its placement puts it.

    post                pre                 residual            sandwich            parallel
    x --+               x --+               x --+               x --+               x --+------+
    |   f               |   norm            |   f               |   norm            |   norm   norm
    |   |               |   f               |   norm            |   f               |   attn   ff
    +<--+               +<--+               +<--+               |   norm            +<--+------+
    norm                |                   |                   +<--+               |

Post bends the identity path in every layer; in all the others it goes straight through.
"""

from collections.abc import Callable, Container

from torch import Tensor, nn

from intaglio.parts.attention import build_attention
from intaglio.parts.context import AttentionContext
from intaglio.parts.cross_attention import CrossAttention
from intaglio.parts.feed_forward import FeedForward
from intaglio.parts.memory import CrossContext
from intaglio.parts.moe import MixtureOfExperts
from intaglio.parts.norm import build_norm
from intaglio.parts.position import Angles
from intaglio.specs import BlockSpec, FeedForwardSpec, MoESpec, NormSpec
from intaglio.specs.decoder import NormPlace
from intaglio.specs.encoder_decoder import cross_attention_of

__all__ = ["Block", "CrossBlock", "Residual", "build_feed_forward"]


class Residual(nn.Module):
    """x + f(x), with norms `before` f, `after` it, or `outside` the sum: see `BlockSpec.norm_places`.

    In training, `dropout` of what is added to x is zeroed (Vaswani et al. 2017, section 5.4).
    """

    def __init__(self, norm: NormSpec, places: Container[NormPlace], size: int, dropout: float = 0.0) -> None:
        super().__init__()

        def norm_if(place: NormPlace) -> nn.Module:
            return build_norm(norm, size) if place in places else nn.Identity()

        self.before, self.after, self.outside = norm_if("before"), norm_if("after"), norm_if("outside")
        self.dropout = nn.Dropout(dropout) if dropout else None

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        """(B, T, E) -> (B, T, E)"""
        return self.outside(x + self.branch(x, f))

    def branch(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        """What is added to x."""
        added = self.after(f(self.before(x)))
        return self.dropout(added) if self.dropout else added


def build_feed_forward(spec: FeedForwardSpec | MoESpec, hidden_size: int) -> FeedForward | MixtureOfExperts:
    """The feed-forward that `spec` describes."""
    if isinstance(spec, MoESpec):
        return MixtureOfExperts(spec, hidden_size)
    return FeedForward(spec, hidden_size)


class Block(nn.Module):
    """See `BlockSpec`."""

    def __init__(self, spec: BlockSpec, hidden_size: int, layer: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.parallel = spec.placement == "parallel"
        self.attention = build_attention(spec.attention, hidden_size, layer)
        self.attention_norm = Residual(spec.norm, spec.norm_places, hidden_size, dropout)
        self.feed_forward = build_feed_forward(spec.feed_forward, hidden_size)
        self.feed_forward_norm = Residual(spec.norm, spec.norm_places, hidden_size, dropout)

    def forward(self, x: Tensor, angles: Angles | None, context: AttentionContext) -> Tensor:
        """(B, T, E) -> (B, T, E)"""

        def attention(h: Tensor) -> Tensor:
            return self.attention(h, angles, context)

        if self.parallel:
            attended = self.attention_norm.branch(x, attention)
            return x + attended + self.feed_forward_norm.branch(x, self.feed_forward)
        return self.feed_forward_norm(self.attention_norm(x, attention), self.feed_forward)


class CrossBlock(Block):
    """A layer that also looks at a source: between its attention and its feed-forward stands one to the memory."""

    def __init__(self, spec: BlockSpec, hidden_size: int, layer: int, dropout: float = 0.0) -> None:
        super().__init__(spec, hidden_size, layer, dropout)
        self.cross_attention = CrossAttention(cross_attention_of(spec), hidden_size, layer)
        self.cross_attention_norm = Residual(spec.norm, spec.norm_places, hidden_size, dropout)

    def forward(  # type: ignore[override]
        self, x: Tensor, angles: Angles | None, context: AttentionContext, memory: CrossContext
    ) -> Tensor:
        """(B, T, E) -> (B, T, E)"""
        x = self.attention_norm(x, lambda h: self.attention(h, angles, context))
        x = self.cross_attention_norm(x, lambda h: self.cross_attention(h, memory))
        return self.feed_forward_norm(x, self.feed_forward)
