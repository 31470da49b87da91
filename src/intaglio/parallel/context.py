"""Context parallelism: every rank has a piece of the sequence, and attention alone asks the others.

    Ulysses      queries, keys and values of all heads and some positions are exchanged for those of some heads and all
                 positions, and the result back (Jacobs et al. 2023): four all-to-alls. Attention is then what it is on
                 one device, so that every kind of it works; ranks divide the heads.
    all-gather   keys and values of all positions are collected, queries stay (Grattafiori et al. 2024, section 3.3.2).
                 Any number of heads; worth it where keys and values are few. Later pieces have more to look at.

Who sees whom is known to the attention context, so both are contexts around the one that an objective made. Outside the
stack of layers everything is whole: ids come in, hidden states come out. Its gradient is in parts: ranks of cp count as
ranks with other batches, whose losses are summed and divided by all their targets, so each answers for its share. Of
the work at the output matrix each does the part of some tokens.

Legend: B batch, T tokens of whole sequences, t of this rank's piece, E features, H query heads, K key/value heads,
D head width, X experts.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.parallel.collectives import bounds, cut, exchange, join
from intaglio.parallel.pieces import kept
from intaglio.parallel.vocabulary import WHOLE, CutTokens
from intaglio.parts.context import AttentionContext, Causal, Packed, Padded, Scores, attend, visible
from intaglio.parts.moe import Router
from intaglio.planning.kept_attention import QUERY_BLOCK
from intaglio.planning.layouts import require_possible
from intaglio.specs.parallel import ParallelSpec

__all__ = ["GatheredKeys", "Ulysses", "parallelize"]


def parallelize(model: Decoder, mesh: DeviceMesh, spec: ParallelSpec) -> None:
    """Cuts what a decoder reads in place over the ranks of cp.

    Args:
        model: behind `tensor.parallelize`, before FSDP2.
        mesh: with a dimension `cp`.
        spec: of which `cp` and `cp_method` count.

    Raises:
        UserError: see `require_possible`.
    """
    if spec.cp == 1:
        return
    require_possible(model.spec, spec)
    cutter = _Cutter(mesh["cp"].get_group(), Ulysses if spec.cp_method == "ulysses" else GatheredKeys)
    model.embed_tokens.register_forward_pre_hook(kept(cutter.ids), prepend=True)
    if model.positions is not None:
        model.positions.register_forward_hook(kept(cutter.positions), prepend=True)
    for layer in model.layers:
        layer.register_forward_pre_hook(kept(cutter.layer), prepend=True)
    for module in model.modules():
        if isinstance(module, Router):
            module.register_forward_hook(kept(cutter.router))
    model.norm.register_forward_hook(kept(cutter.hidden))
    vocabulary = copy.copy(getattr(model.lm_head, "vocabulary", WHOLE))
    vocabulary.tokens = CutTokens(cutter.group)
    vars(model.lm_head)["vocabulary"] = vocabulary


class _Context:
    """What both kinds have: the context of the whole sequence, and where this rank's piece is.

    Args:
        inner: has begun its forward.
        group: the ranks of cp.
    """

    caches = False

    def __init__(self, inner: AttentionContext, group: dist.ProcessGroup) -> None:
        assert isinstance(inner, Causal), "a context that keeps keys is not cut"
        self.inner, self.group = inner, group
        self.length = inner.positions.shape[1]  # T
        self.start, self.own = bounds(self.length, group)

    @property
    def positions(self) -> Tensor:
        """(B, t)"""
        return cut(self.inner.positions, 1, self.group)

    def begin(self, positions: Tensor) -> None:
        """See `AttentionContext`; the context of the whole sequence has begun."""

    def planned(self, positions: Tensor) -> Tensor:
        """See `AttentionContext`."""
        return self.inner.planned(self.inner.positions)


class Ulysses(_Context):
    """Heads for positions; see above."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor | int, scores: Scores) -> Tensor:
        """See `AttentionContext`; (B, H, t, D) and (B, K, t, D) -> (B, H, t, D)."""
        heads, value = query.shape[1], key[..., :value] if isinstance(value, int) else value
        q, k, v = (exchange(x, 1, 2, self.length, self.group) for x in (query, key, value))  # (B, H / cp, T, D)
        out = self.inner.attend(layer, q, k, v, scores)
        return exchange(out, 2, 1, heads, self.group)


class GatheredKeys(_Context):
    """Keys and values of all positions; see above.

    Raises:
        UserError: the context has other rules than documents and padding.
    """

    def __init__(self, inner: AttentionContext, group: dist.ProcessGroup) -> None:
        super().__init__(inner, group)
        if type(inner) not in (Causal, Padded, Packed):
            raise UserError(
                f"all_gather reads rows of plain documents, and this objective's are {type(inner).__name__.lower()}",
                where="parallel.cp_method",
                mend="take ulysses",
            )

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor | int, scores: Scores) -> Tensor:
        """See `AttentionContext`; (B, H, t, D) and (B, K, t, D) -> (B, H, t, D)."""
        value = key[..., :value] if isinstance(value, int) else value
        keys, values = (join(x, 2, self.length, self.group) for x in (key, value))  # (B, K, T, D)
        outs, first = [], 0
        for length in self.inner.documents:
            start, stop = max(first, self.start), min(first + length, self.start + self.own)
            outs += [
                self._block(query, keys, values, scores, first, slice(place, min(place + QUERY_BLOCK, stop)))
                for place in range(start, stop, QUERY_BLOCK)
            ]
            first += length
        if not outs:  # a piece without a token, whose rank answers in the backward all the same
            none = 0 * (query.sum() + keys.sum() + values.sum())
            return query.new_zeros(*query.shape[:3], values.shape[-1]) + none
        return torch.cat(outs, dim=2)

    def _block(self, query: Tensor, keys: Tensor, values: Tensor, scores: Scores, first: int, rows: slice) -> Tensor:
        """Some queries, at places `rows` of the whole sequence, over their document from its `first` token on."""
        seen, positions = slice(first, rows.stop), self.inner.positions
        mask = visible(positions[:, rows], positions[:, seen], scores.window)
        mine = query[:, :, rows.start - self.start : rows.stop - self.start]
        return attend(mine, keys[:, :, seen], values[:, :, seen], scores, mask)


class _Cutter:
    """Hooks that cut what goes into the stack, and join what comes out.

    Args:
        group: the ranks of cp.
        kind: of context.
    """

    def __init__(
        self, group: dist.ProcessGroup, kind: Callable[[AttentionContext, dist.ProcessGroup], AttentionContext]
    ) -> None:
        self.group, self.kind = group, kind
        self.length = self.batch = 0

    def ids(self, table: nn.Module, args: Any) -> tuple[Tensor]:
        """Before the look-up: (B, T) -> (B, t)"""
        self.length = args[0].shape[1]
        return (cut(args[0], 1, self.group),)

    def positions(self, table: nn.Module, args: Any, out: Tensor) -> Tensor:
        """Behind that of positions: (B, T, E) -> (B, t, E)"""
        return cut(out, 1, self.group)

    def layer(self, block: nn.Module, args: Any) -> tuple[Any, ...]:
        """Before a layer: x (B, t, E), angles and context of the whole sequence -> of the piece."""
        x, angles, context, *more = args
        self.batch, self.length = x.shape[0], context.positions.shape[1]
        mine = angles and tuple(cut(angle, 2, self.group) for angle in angles)
        return x, mine, self.kind(context, self.group), *more

    def router(self, router: Router, args: Any, out: Any) -> None:
        """Behind a router: its load-balancing loss is that of the whole row, not of the piece: (B*t, X) -> (B*T, X)"""
        if torch.is_grad_enabled() and router.scores is not None and router.chosen is not None:
            router.scores, router.chosen = self._row(router.scores), self._row(router.chosen)

    def _row(self, x: Tensor) -> Tensor:
        return join(x.unflatten(0, (self.batch, -1)), 1, self.length, self.group).flatten(0, 1)

    def hidden(self, norm: nn.Module, args: Any, out: Tensor) -> Tensor:
        """Behind the last norm: (B, t, E) -> (B, T, E)"""
        return join(out, 1, self.length, self.group)
