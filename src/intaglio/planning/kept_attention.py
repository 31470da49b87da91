"""What attention keeps for the backward: each kind walked as its forward does.

What other devices do otherwise: on a CPU attention whose values are of another width than its keys (latent attention)
keeps its probabilities, since the fused kernel wants one width; and short documents have a kernel of their own.

Legend: T tokens, E features of the model, H query heads, K key/value heads, D head width. `tape.make(kind, n)` is a
tensor of T * n elements.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from intaglio.planning.kept_parts import norm
from intaglio.planning.tape import FLOAT, Stored, Tape
from intaglio.specs import AttentionSpec, LatentAttentionSpec, RotarySpec

__all__ = ["QUERY_BLOCK", "SHORT_DOCUMENT", "Rotaries", "angles", "attention", "latent_attention"]

SHORT_DOCUMENT = 384
"""Tokens up to which a packed document's attention in bf16 is differentiated by plain products on a CPU."""

QUERY_BLOCK = 1024
"""Queries that have a mask at once where the ranks that share a sequence collect its keys (`parallel.context`)."""

Rotaries = dict[tuple[RotarySpec, int], tuple[Stored, Stored]]


def angles(tape: Tape, spec: AttentionSpec | LatentAttentionSpec, rotaries: Rotaries) -> tuple[Stored, ...]:
    """cos and sin of the whole sequence, one pair for all layers that turn alike."""
    if not spec.rope:
        return ()
    width = spec.qk_rope_head_dim if isinstance(spec, LatentAttentionSpec) else spec.width
    key = (spec.rope, width)
    if key not in rotaries:
        turned = spec.rope.dim or width
        rotaries[key] = (tape.everywhere.make("rotary", turned), tape.everywhere.make("rotary", turned))
    return rotaries[key]


def attention(tape: Tape, spec: AttentionSpec, size: int, x: Stored, rotaries: Rotaries) -> Stored:
    """T * E elements of x, and as many come out."""
    heads, kv_heads, width = spec.num_heads, spec.kv_heads, spec.width
    sizes = {"q_proj": heads, "k_proj": kv_heads, "v_proj": kv_heads}
    query, key, value = (_project(tape, name, x, count * width) for name, count in sizes.items())
    if spec.qk_norm:
        query, key = (_qk_norm(tape, spec, y, count) for y, count in ((query, heads), (key, kv_heads)))
    if spec.rope:
        turns = angles(tape, spec, rotaries)
        query, key = (_turned(tape, y, turns, count * width) for y, count in ((query, heads), (key, kv_heads)))
    met = _meet(tape, (heads, width, query), (kv_heads, width, key), (kv_heads, width, value))
    here = heads // met.pieces
    out = _fused(met, here, width, spec.window) if spec.softcap is None else _capped(met, here, width, spec.window)
    partly = spec.rope is not None and (spec.rope.dim or width) < width
    copied = (partly and heads > 1) or spec.softcap is not None  # turned from (H, T, D) to (T, H, D)
    return _joined(tape, out, heads * width, size, copied)


def _project(tape: Tape, name: str, x: Stored, features: int) -> Stored:
    return tape.linear("attention", f"attention.{name}", x, features)


def _joined(tape: Tape, out: Stored, features: int, size: int, copied: bool) -> Stored:
    """Through the output matrix: of documents, or of what came back from other ranks, as one tensor."""
    copied = copied or tape.documents is not None or tape.shared.context > 1
    return _project(tape, "o_proj", tape.make("attention", features, out) if copied else out, size)


def _qk_norm(tape: Tape, spec: AttentionSpec, x: Stored, heads: int) -> Stored:
    """Head by head; or over all of them at once, which ranks of tp have to collect (and cut again: a view)."""
    assert spec.qk_norm
    if spec.qk_norm.over == "head":
        return norm(tape, spec.qk_norm.norm, x, spec.width, heads)
    size = tape.shared.tensor * heads * spec.width
    return norm(tape, spec.qk_norm.norm, x if tape.shared.tensor == 1 else tape.make("attention", size, x), size)


def _turned(tape: Tape, x: Stored, turns: tuple[Stored, ...], features: int) -> Stored:
    out = tape.make("attention", features, x)
    tape.keep(out, *turns)
    return out


@dataclass(frozen=True)
class _Met:
    """Queries, keys and values where they meet.

    Attributes:
        tape: of the tokens that queries are of.
        query, key, value: as they come there.
        pieces: into which the heads are cut.
    """

    tape: Tape
    query: Stored
    key: Stored
    value: Stored
    pieces: int = 1

    @property
    def all(self) -> tuple[Stored, Stored, Stored]:
        return self.query, self.key, self.value

    def blocks(self, window: int | None) -> Iterator[tuple[int, int, bool]]:
        """Of each call of a kernel: queries, keys, and whether there is a mask."""
        if not self.tape.shared.collects:
            yield from ((length, length, window is not None and window < length) for length in self.tape.lengths)
            return
        for begin, end in self.tape.pieces:
            for start in range(begin, end, QUERY_BLOCK):
                stop = min(start + QUERY_BLOCK, end)
                yield stop - start, stop, True


_Heads = tuple[int, int, Stored]
"""How many, how wide, and what has them."""


def _meet(tape: Tape, query: _Heads, key: _Heads, value: _Heads) -> _Met:
    """As they are; all tokens of some heads; or all keys and values."""
    ranks, met = tape.shared.context, [query, key, value]
    if tape.shared.exchanges:
        queries, keys, values = (tape.met(heads // ranks, width, x) for heads, width, x in met)
        return _Met(tape.everywhere, queries, keys, values, ranks)
    queries, keys, values = (x for _, _, x in met)
    if tape.shared.collects:
        keys, values = tape.met(*key), tape.met(*value)
    return _Met(tape, queries, keys, values)


def _fused(met: _Met, heads: int, width: int, window: int | None) -> Stored:
    """The fused kernel: queries, keys, values, the result, one log-sum per row, and a mask where a window binds.

    Of short documents (see `parts.short_attention`) neither result nor log-sums.
    """
    tape, result = met.tape, met.tape.make("attention", heads * width, *met.all)
    tape.keep(result, *met.all)
    for rows, keys, masked in met.blocks(window):
        out, sums = tape.attended(rows * heads * width * tape.itemsize, rows * heads * FLOAT, of=met.all)
        if masked or not _short(tape, rows):
            tape.keep(out, out, sums)
        if masked:
            tape.keep(out, Stored("attention", rows * keys * tape.itemsize))
        result = out
    return result


def _short(tape: Tape, length: int) -> bool:
    few = tape.documents is not None and length <= SHORT_DOCUMENT
    return few and tape.shared.cpu and tape.itemsize < FLOAT


def _capped(met: _Met, heads: int, width: int, window: int | None) -> Stored:
    """Written out: keys and values repeated for every head, tanh, the mask, and the probabilities in fp32."""
    tape = met.tape
    for rows, keys, _ in met.blocks(window):
        size, scores = keys * heads * width * tape.itemsize, rows * keys * heads
        key, value = (Stored("attention", size, one.flows) for one in (met.key, met.value))
        tape.times(met.query, key)
        tanh = Stored("attention", scores * tape.itemsize, met.query.flows or key.flows)
        softmax = Stored("attention", scores * FLOAT, tanh.flows)
        tape.keep(tanh, tanh, Stored("attention", rows * keys), softmax)
        rounded = softmax if tape.itemsize == FLOAT else Stored("attention", scores * tape.itemsize, tanh.flows)
        tape.times(rounded, value)
    return tape.make("attention", heads * width, *met.all)


def latent_attention(tape: Tape, spec: LatentAttentionSpec, size: int, x: Stored, rotaries: Rotaries) -> Stored:
    """The expanded form, which training uses; T * E elements of x, and as many come out."""
    heads, width, turns = spec.num_heads, spec.qk_head_dim, angles(tape, spec, rotaries)
    if spec.q_lora_rank:
        latent = _project(tape, "q_a_proj", x, spec.q_lora_rank)
        query = _project(tape, "q_b_proj", norm(tape, spec.norm, latent, spec.q_lora_rank), heads * width)
    else:
        query = _project(tape, "q_proj", x, heads * width)
    joined = _project(tape, "kv_a_proj", x, spec.latent_width)  # the latent and the rotary key are views of one product
    latent = norm(tape, spec.norm, joined, spec.kv_lora_rank)
    rebuilt = _project(tape, "kv_b_proj", latent, heads * (spec.qk_nope_head_dim + spec.v_head_dim))
    query, key = (_turned(tape, one, turns, heads * width) for one in (query, joined))
    key = tape.make("attention", heads * width, key, rebuilt)
    met = _meet(tape, (heads, width, query), (heads, width, key), (heads, spec.v_head_dim, rebuilt))
    here = heads // met.pieces
    if width == spec.v_head_dim or not tape.shared.cpu:
        out = _fused(met, here, spec.v_head_dim, None)
    else:
        out = _probabilities(met, spec, here)
    return _joined(tape, out, heads * spec.v_head_dim, size, heads > 1)


def _probabilities(met: _Met, spec: LatentAttentionSpec, heads: int) -> Stored:
    """Unfused: scaled queries and keys, probabilities and values, all in fp32."""
    tape = met.tape
    for rows, keys, _ in met.blocks(None):
        query, key = (
            Stored("attention", count * heads * spec.qk_head_dim * FLOAT, one.flows)
            for count, one in ((rows, met.query), (keys, met.key))
        )
        tape.times(query, key)
        scores = Stored("attention", rows * keys * heads * FLOAT, query.flows or key.flows)
        tape.keep(scores, scores)
        wide = keys * heads * spec.v_head_dim * FLOAT
        value = met.value if tape.itemsize == FLOAT else Stored("attention", wide, met.value.flows)
        tape.times(scores, value)
    return tape.make("attention", heads * spec.v_head_dim, *met.all)
