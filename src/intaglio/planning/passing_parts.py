"""What a layer needs for a moment, beside what it keeps: in its forward, and in its backward before that. No torch.

Moments that were seen to be the worst; all else that comes and goes is smaller.

Legend: T tokens, E features of the model, I intermediate features, k experts per token, r rank of an adapter.
"""

from intaglio.planning.kept_parts import feed_forward
from intaglio.planning.tape import FLOAT, Stored, Tape
from intaglio.specs import BlockSpec, FeedForwardSpec, MoESpec

__all__ = ["in_backward", "in_forward"]

_RUN, _BLOCK = 256, 32  # rows and ranks of a gradient's part that native operators sum at once (`native/low_rank.cpp`)


def in_forward(tape: Tape, block: BlockSpec, size: int) -> int:
    """Beyond what a layer has kept when it is done: where an adapter on the last matrix of experts makes its part, in
    fp32, expert by expert, and joins it; beside the frozen part, and in bf16 beside what was copied into fp32."""
    inner = block.feed_forward
    if not isinstance(inner, MoESpec) or not tape.rank("feed_forward.experts.down_proj"):
        return 0
    rows = tape.tokens * inner.num_experts_per_tok
    made = rows * size * (2 * FLOAT + tape.itemsize)
    copied = rows * (size + inner.expert.intermediate_size) * tape.itemsize if tape.itemsize < FLOAT else 0
    later = 2 * rows * size * tape.itemsize + _shared(tape, inner, size)  # weighted results are not there yet
    return max(made + copied + _read(tape, size) - later, 0)


def in_backward(tape: Tape, block: BlockSpec, size: int, *, again: bool, products: bool = False) -> int:
    """Gradients of features inside a feed-forward, beyond what its own backward has let go of by then.

    Args:
        tape: of the layer.
        block: it.
        size: E.
        again: whether the layer is made again first.
        products: whether what its products made has been kept.
    """
    inner = block.feed_forward
    if not isinstance(inner, MoESpec):
        return max(_inner(tape, inner), _low_rank(tape, inner, size))
    rows = tape.tokens * inner.num_experts_per_tok
    put_back = 2 * rows * size * tape.itemsize + (_read(tape, size) if again else 0)
    moments = [_inner(tape, inner.expert, inner.num_experts_per_tok), put_back]
    if again:
        remade = in_forward(tape, block, size) + _shared(tape, inner, size)  # of which that has taken account
        if inner.shared is None:  # the gradient of what is put back waits, and the last product has been kept
            remade += rows * size * (tape.itemsize - (FLOAT if products else 0))
        moments.append(remade)
    worst = max(moments) - _shared(tape, inner, size, products)
    return worst if inner.shared is None else max(worst, _inner(tape, inner.shared))


def _read(tape: Tape, size: int) -> int:
    """What a mixture reads, while it runs: only in fp32 do trained routers keep it."""
    return 0 if tape.weight.flows and tape.itemsize == FLOAT else tape.tokens * size * tape.itemsize


def _shared(tape: Tape, spec: MoESpec, size: int, products: bool = False) -> int:
    """What the expert for all tokens keeps, whose turn is the last in the forward and the first in the backward; but
    its products, where these have been kept before."""
    if spec.shared is None:
        return 0
    aside = tape.aside()
    feed_forward(aside, spec.shared, size, Stored("moe", 0, True), "moe", "feed_forward.shared")
    return aside.total(without=aside.results() if products else ())


def _inner(tape: Tape, inner: FeedForwardSpec, times: int = 1) -> int:
    shared = tape.shared
    adapted = shared.twice and tape.rank("feed_forward.down_proj") > 0
    bent_again = inner.gated and inner.activation == "silu" and shared.cpu and tape.itemsize < FLOAT
    features = 3 if bent_again and not shared.native else 2 if inner.gated or adapted else 1
    return tape.tokens * times * inner.intermediate_size * features * tape.itemsize


def _low_rank(tape: Tape, inner: FeedForwardSpec, size: int) -> int:
    """The last matrix' turn, where native operators sum up the gradients of its adapter run by run."""
    rank = tape.rank("feed_forward.down_proj")
    if not rank or tape.shared.twice:
        return 0
    factors = -(-rank // _BLOCK) * _BLOCK * (size + inner.intermediate_size) * FLOAT
    return tape.tokens * inner.intermediate_size * tape.itemsize + (-(-tape.tokens // _RUN) + 1) * factors
