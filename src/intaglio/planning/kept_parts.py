"""What norms, feed-forwards and mixtures of experts keep for the backward: each walked as its forward does.

Legend: T tokens, E features of the model, I intermediate features, X experts, k experts per token. `tape.make(kind, n)`
is a tensor of T * n elements.
"""

from collections.abc import Callable

from intaglio.planning.losses import INT64
from intaglio.planning.tape import ADAPTER, FLOAT, Stored, Tape
from intaglio.specs import FeedForwardSpec, LayerNormSpec, MoESpec, NormSpec, SwishSpec

__all__ = ["feed_forward", "mixture", "norm"]

_Product = Callable[[str, Stored, int], Stored]


def norm(tape: Tape, spec: NormSpec, x: Stored, size: int, rows: int = 1) -> Stored:
    """Over `rows` rows of `size` features for each token."""
    out = tape.weighed(tape.make("norm", rows * size, x, tape.weight), tape.weight)
    if isinstance(spec, LayerNormSpec):  # the row, its mean and its deviation
        tape.keep(out, x, tape.make("norm", rows), tape.make("norm", rows))
        return out
    tape.keep(out, x, tape.make("norm", rows, itemsize=FLOAT))  # the row and one number
    if spec.unit_offset:
        tape.keep(out, Stored("norm", size * tape.itemsize))  # 1 + weight
    return out


def feed_forward(
    tape: Tape, spec: FeedForwardSpec, size: int, x: Stored, kind: str = "feed_forward", path: str = "feed_forward"
) -> Stored:
    """T * E elements of x, and as many come out."""

    def product(name: str, read: Stored, width: int) -> Stored:
        return tape.linear(kind, f"{path}.{name}", read, width)

    return product("down_proj", _inner(tape, spec, kind, product, x), size)


def _inner(tape: Tape, spec: FeedForwardSpec, kind: str, product: _Product, x: Stored, times: int = 1) -> Stored:
    """What goes into the last matrix: the bend, times the gated half if there is one; `times` rows for each token."""
    width = times * spec.intermediate_size
    if not spec.gated:
        return _bent(tape, spec, kind, product("up_proj", x, width), width)
    gate, up = product("gate_proj", x, width), product("up_proj", x, width)
    if spec.activation == "silu" and tape.shared.cpu and tape.itemsize < FLOAT:  # bent again in the backward, see
        out = tape.make(kind, width, gate, up)  # `parts.feed_forward`
        tape.keep(out, gate, up)
        return out
    bent = _bent(tape, spec, kind, gate, width)
    tape.times(bent, up)
    return tape.make(kind, width, bent, up)


def _bent(tape: Tape, spec: FeedForwardSpec, kind: str, x: Stored, width: int) -> Stored:
    out = tape.make(kind, width, x)
    if isinstance(spec.activation, SwishSpec):
        tape.keep(out, x, tape.make(kind, width))  # x and the sigmoid
    elif spec.activation == "relu2":
        tape.keep(out, out)
        return tape.make(kind, width, out)  # its square
    else:
        tape.keep(out, out if spec.activation in ("relu", "sigmoid") else x)
    return out


def mixture(tape: Tape, spec: MoESpec, size: int, x: Stored) -> Stored:
    """The router, then k rows for each token: sorted by expert, run, weighted, and put back in order."""
    chosen = spec.num_experts_per_tok
    weights = _router(tape, spec, size, x)
    rows = tape.make("moe", chosen * size, x)
    tape.keep(rows, tape.make("moe", chosen, itemsize=INT64))  # which token each is
    out = _travelled(tape, spec, size, rows)
    order = tape.make("moe", chosen, itemsize=INT64)
    tape.keep(weights, order)
    by = tape.make("moe", chosen, weights)
    tape.times(out, by)
    weighted = tape.make("moe", chosen * size, out, by)
    tape.keep(weighted, order, weighted)  # what is put back in order
    result = tape.make("moe", size, weighted)
    if spec.shared is None:
        return result
    return tape.make("moe", size, result, feed_forward(tape, spec.shared, size, x, "moe", "feed_forward.shared"))


def _travelled(tape: Tape, spec: MoESpec, size: int, rows: Stored) -> Stored:
    """The experts' rows; those that come from other ranks are sorted once more, and so are the results that go back
    (`parallel.experts`)."""
    if tape.shared.experts == 1:
        return _experts(tape, spec, size, rows)
    count = spec.num_experts_per_tok
    order, came = tape.make("moe", count, itemsize=INT64), tape.make("moe", count * size, rows)
    tape.keep(came, order)
    out = _experts(tape, spec, size, came)
    tape.keep(out, order, out)
    return tape.make("moe", count * size, out)


def _experts(tape: Tape, spec: MoESpec, size: int, rows: Stored) -> Stored:
    chosen, aligned = spec.num_experts_per_tok, size % 8 == 0 and spec.expert.intermediate_size % 8 == 0
    grouped = tape.itemsize == 2 and aligned and not tape.shared.quantized
    ends = Stored("moe", spec.num_experts // tape.shared.experts * 4)  # where each expert's rows end

    def product(name: str, read: Stored, width: int) -> Stored:
        """All experts' results: of one fused product, or of one for each expert, joined; adapters compute in fp32."""
        made, rank = tape.product("moe", width, read, tape.weight), tape.rank(f"feed_forward.experts.{name}")
        tape.weighed(made, tape.weight)
        if grouped:
            tape.keep(made, ends)
        out = made if grouped else tape.make("moe", width, made)
        if not rank:
            return out
        wide = tape.as_float("moe", read, read.num_bytes // tape.itemsize // tape.tokens)
        low = tape.weighed(tape.product("moe", chosen * rank, wide, ADAPTER, FLOAT), ADAPTER)
        scaled = tape.make("moe", chosen * rank, low, itemsize=FLOAT)
        update = tape.weighed(tape.product("moe", width, scaled, ADAPTER, FLOAT), ADAPTER)
        return tape.make("moe", width, out, update)

    return product("down_proj", _inner(tape, spec.expert, "moe", product, rows, chosen), chosen * size)


def _router(tape: Tape, spec: MoESpec, size: int, x: Stored) -> Stored:
    """In fp32: the row, the scores, the choice, the weights (k for each token)."""
    chosen, matrix = spec.num_experts_per_tok, tape.weight
    if tape.rank("feed_forward.router"):
        matrix = Stored("moe", spec.num_experts * size * FLOAT, True)  # with the adapter's change
    elif tape.itemsize != FLOAT:
        matrix = Stored("moe", spec.num_experts * size * FLOAT, matrix.flows)  # in fp32
    logits = tape.product("moe", spec.num_experts, tape.as_float("moe", x, size), matrix, FLOAT)
    tape.weighed(logits, matrix)
    scores = tape.make("moe", spec.num_experts, logits, itemsize=FLOAT)
    tape.keep(scores, scores, tape.make("moe", chosen, itemsize=INT64))
    if spec.router.num_groups > 1:
        _groups(tape, spec, scores)
    weights = tape.make("moe", chosen, scores, itemsize=FLOAT)
    if not spec.router.renormalise:
        return weights
    tape.keep(weights, tape.make("moe", 1, itemsize=FLOAT), weights)
    return tape.make("moe", chosen, weights, itemsize=FLOAT)


def _groups(tape: Tape, spec: MoESpec, scores: Stored) -> None:
    """The best groups, the mask of the others, and by what a group was judged."""
    router = spec.router
    if router.group_score == "max":
        biased = tape.make("moe", spec.num_experts, itemsize=FLOAT) if router.bias_correction else scores
        tape.keep(scores, biased, tape.make("moe", router.num_groups, itemsize=FLOAT))
    else:
        tape.keep(scores, tape.make("moe", router.num_groups * 2, itemsize=INT64))
    tape.keep(scores, tape.make("moe", router.top_groups, itemsize=INT64))
    tape.keep(scores, tape.make("moe", router.num_groups, itemsize=1))
