"""LoRA: low-rank updates beside frozen matrices. A module wraps what it adapts and holds any number of adapters.

    x ---+---- W (frozen) ----------+--- y
         |                          |
         +---- A --- B --- * s -----+

Legend: I features in, O features out, r rank, X experts, V vocabulary, E features of the model; s = alpha / r.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio.parts.lora_fast import adapted_product, add_low_rank, suit_together, suits
from intaglio.parts.moe import grouped_linear
from intaglio.specs.adapter import LoRASpec

__all__ = [
    "Adapted",
    "LoRAEmbedding",
    "LoRAExperts",
    "LoRALinear",
    "LoRARouter",
    "LowRank",
    "linear_of",
    "matrix_of",
]


class LowRank(nn.Module):
    """s (B A - B0 A0): the update of a matrix W (O, I), or of a stack of them (X, O, I).

    A (r, I) and B (O, r) train, in fp32 at least. A0 and B0 are what they started from, where that was not 0 (PiSSA,
    OLoRA): so W need not be changed, and other adapters share it.

    Args:
        shape: of W.
        rank: r.
        scale: s.
        spec: for the variants.
        like: gives the device, and the dtype if that is finer than fp32.
        columns: W is a table of embeddings: A starts as those do, and DoRA's lengths are those of columns, as PEFT's.
    """

    lora_A: nn.Parameter
    lora_B: nn.Parameter
    start_A: Tensor | None
    start_B: Tensor | None

    def __init__(
        self, shape: Sequence[int], rank: int, scale: float, spec: LoRASpec, like: Tensor, *, columns: bool = False
    ) -> None:
        super().__init__()
        *stack, outputs, inputs = shape
        self.rank, self.scale, self.dropout, self.columns = rank, scale, spec.lora_dropout, columns
        self.how = spec.init_lora_weights

        def zeros(*size: int) -> nn.Parameter:
            dtype = torch.promote_types(like.dtype, torch.float32) if like.is_floating_point() else torch.float32
            return nn.Parameter(torch.zeros(size, dtype=dtype, device=like.device))

        self.lora_A, self.lora_B = zeros(*stack, rank, inputs), zeros(*stack, outputs, rank)
        self.lora_bias = zeros(outputs) if spec.lora_bias and not columns else None
        self.lora_magnitude_vector = zeros(inputs if columns else outputs) if spec.use_dora else None
        self.register_buffer("start_A", None)
        self.register_buffer("start_B", None)

    @property
    def plain(self) -> bool:
        """Whether it is s B A and nothing else."""
        return self.lora_bias is None and self.lora_magnitude_vector is None and self.start_A is None

    @torch.no_grad()
    def start(self, weight: Callable[[], Tensor], generator: torch.Generator | None) -> None:
        """Fills A and B to train from; `weight` gives W where it is needed. Without a generator A is 0 as B is."""
        if self.how in ("pissa", "olora"):
            split = _singular if self.how == "pissa" else _orthogonal
            b, a = split(weight().to(self.lora_A.dtype), self.rank, self.scale)
            self.lora_A.copy_(a)
            self.lora_B.copy_(b)
            self.start_A, self.start_B = self.lora_A.detach().clone(), self.lora_B.detach().clone()
        elif generator:
            self.lora_A.copy_(self._random(generator))
        if self.lora_magnitude_vector is not None:
            self.lora_magnitude_vector.copy_(self.lengths(weight()))

    def _random(self, generator: torch.Generator) -> Tensor:
        """A where B is 0: as torch starts a linear layer, N(0, 1/r), or as it starts embeddings."""
        values = torch.empty(self.lora_A.shape)
        if self.columns or self.how == "gaussian":
            return values.normal_(0.0, 1.0 if self.columns else 1 / self.rank, generator=generator)
        bound = 1 / math.sqrt(self.lora_A.shape[-1])
        return values.uniform_(-bound, bound, generator=generator)

    def forward(self, x: Tensor, ends: Tensor | None = None) -> Tensor:
        """The update's part of the output: (..., I) -> (..., O); of a stack see `Experts`."""
        x = x.to(self.lora_A.dtype)
        bias = None if self.lora_bias is None else self.lora_bias * self.scale
        out = self._product(x, self.lora_A, self.lora_B, ends)
        out = out if bias is None else out + bias
        if self.start_A is None or self.start_B is None:
            return out
        return out - self._product(x, self.start_A, self.start_B, ends)

    def _product(self, x: Tensor, a: Tensor, b: Tensor, ends: Tensor | None) -> Tensor:
        if ends is None:
            return F.linear(F.linear(x, a) * self.scale, b)
        return grouped_linear(grouped_linear(x, a, ends) * self.scale, b, ends)

    def rows(self, ids: Tensor) -> Tensor:
        """The update's part of some embeddings: (...) ids -> (..., E)."""
        out = F.linear(F.embedding(ids, self.lora_B) * self.scale, self.lora_A.mT)
        if self.start_A is None or self.start_B is None:
            return out
        return out - F.linear(F.embedding(ids, self.start_B) * self.scale, self.start_A.mT)

    def delta(self) -> Tensor:
        """The update itself, of the shape of W."""
        delta = self.lora_B @ self.lora_A
        if self.start_A is not None and self.start_B is not None:
            delta = delta - self.start_B @ self.start_A
        return delta * self.scale

    @torch.no_grad()
    def lengths(self, weight: Tensor) -> Tensor:
        """DoRA's norm of W plus the update: of rows (O,), or of columns (I,). Without gradient (section 4.3)."""
        return torch.linalg.vector_norm(weight + self.delta(), dim=-2 if self.columns else -1)

    def stretch(self, weight: Tensor) -> Tensor:
        """DoRA's m / ||W + s B A||: (O,) or (I,)."""
        assert self.lora_magnitude_vector is not None, "only DoRA has one"
        return self.lora_magnitude_vector / self.lengths(weight)

    def change(self, weight: Tensor) -> Tensor:
        """What W, in this dtype, becomes less what it was: all that this adapter does to it."""
        if self.lora_magnitude_vector is None:
            return self.delta()
        stretch = self.stretch(weight)
        return (stretch if self.columns else stretch[..., None]) * (weight + self.delta()) - weight


def _singular(weight: Tensor, rank: int, scale: float) -> tuple[Tensor, Tensor]:
    """B and A of the `rank` largest singular values, s B A being that part of W (PiSSA, equation 2)."""
    u, s, vh = torch.linalg.svd(weight, full_matrices=False)
    root = (s[..., :rank] / scale).sqrt()
    return u[..., :rank] * root[..., None, :], vh[..., :rank, :] * root[..., None]


def _orthogonal(weight: Tensor, rank: int, scale: float) -> tuple[Tensor, Tensor]:
    """B and A of the first `rank` columns of Q and rows of R."""
    q, r = torch.linalg.qr(weight)
    return q[..., :rank], r[..., :rank, :]


def matrix_of(part: Any) -> Tensor:
    """W of a linear layer or an embedding, or a stack of experts', in fp32 at least, whatever it is kept in."""
    if hasattr(part, "dequantized"):
        made: Tensor = part.dequantized()
        return made
    weight: Tensor = part if isinstance(part, Tensor) else part.weight
    return weight.to(torch.promote_types(weight.dtype, torch.float32))


def linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer with this matrix (O, I) and this bias (O,)."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach())
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach())
    return linear


class Adapted(nn.Module):
    """A part of the model, and what adapters do to it.

    Attributes:
        base: the part, which may be wrapped itself.
        adapters: a module for each adapter that says something here.
        active: the adapters that count now, in this order.
        rows: with a mixed batch, the adapter (or None) of each row, or of each token of all rows; `active` is not
            asked then.
    """

    base: Any

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.adapters = nn.ModuleDict()
        self.active: tuple[str, ...] = ()
        self.rows: tuple[str | None, ...] | None = None

    def __getattr__(self, name: str) -> Any:
        """What the part itself has, like `in_features`."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__") or name == "base":
                raise
            return getattr(self.base, name)

    def chosen(self) -> list[Any]:
        """What the active adapters have here."""
        return [self.adapters[name] for name in self.active if name in self.adapters]

    def forward(self, x: Tensor) -> Tensor:
        """As the part itself."""
        if self.rows is not None:
            return self._mixed(x, self.rows)
        out: Tensor = self.base(x)
        for piece in self.chosen():
            out = self.adjust(piece, x, out)
        return out

    def _mixed(self, x: Tensor, rows: Sequence[str | None]) -> Tensor:
        out: Tensor = self.base(x)
        depth = out.ndim - 1  # of the places: an embedding's input has no features
        places, flat = x.flatten(0, depth - 1), out.flatten(0, depth - 1)
        for name in sorted({name for name in rows if name is not None and name in self.adapters}):
            mine = torch.tensor([row == name for row in rows], device=x.device)
            mine = mine.repeat_interleave(len(flat) // len(rows)).nonzero()[:, 0]
            flat = flat.index_copy(0, mine, self.adjust(self.adapters[name], places[mine], flat[mine]))
        return flat.view_as(out)

    def adjust(self, piece: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        """The output under one adapter, from the input and the output without it."""
        raise NotImplementedError

    @property
    def weight(self) -> Tensor:
        """W under the active adapters, in the dtype W has; with gradients to what trains."""
        raise NotImplementedError

    def merged(self) -> nn.Module:
        """The part with the active adapters in its own weights, new ones where they change."""
        raise NotImplementedError


class LoRALinear(Adapted):
    """A linear layer with low-rank updates."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) -> (..., O)"""
        pieces = self.chosen() if self.rows is None else []
        if len(pieces) != 1 or not self._is_one_call(pieces[0], x):
            return super().forward(x)
        return adapted_product(x, self.base.weight, self.base.bias, pieces[0].lora_A, pieces[0].lora_B, pieces[0].scale)

    def _is_one_call(self, piece: LowRank, x: Tensor) -> bool:
        """Whether the layer and its update are a product each and nothing else, and the layer is frozen."""
        plain = type(self.base) is nn.Linear and piece.plain and not (piece.dropout and self.training)
        frozen = plain and (self.base.bias is None or not self.base.bias.requires_grad)
        return frozen and suit_together(x, self.base.weight, piece.lora_A)

    def adjust(self, piece: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        """(..., I) and (..., O) -> (..., O)"""
        assert isinstance(piece, LowRank)
        dropped = F.dropout(x, piece.dropout, self.training) if piece.dropout else x
        if piece.plain and suits(dropped, out):
            return add_low_rank(out, dropped, piece.lora_A, piece.lora_B, piece.scale)
        update = piece(dropped)
        if piece.lora_magnitude_vector is not None:
            update = self._stretched(piece, dropped, out, update)
        return out + update.to(out.dtype)

    def _stretched(self, piece: LowRank, x: Tensor, out: Tensor, update: Tensor) -> Tensor:
        """What DoRA adds: (m/n - 1) W x + m/n s B A x, with x after dropout in both."""
        weight = matrix_of(self.base)
        stretch = piece.stretch(weight)
        if piece.dropout and self.training:
            plain = F.linear(x.to(weight.dtype), weight)
        else:
            plain = out if self.base.bias is None else out - self.base.bias.to(out.dtype)
        return (stretch - 1) * plain + stretch * update

    @property
    def weight(self) -> Tensor:
        """W under the active adapters, (O, I), in the dtype it is kept (or was quantised from)."""
        pieces = self.chosen()
        if not pieces and not hasattr(self.base, "dequantized"):
            return self.base.weight
        return self.merged_weight().to(self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        made_from = getattr(self.base, "made_from", None)
        return made_from or self.base.weight.dtype

    def merged_weight(self) -> Tensor:
        """W under the active adapters, (O, I), in fp32 at least."""
        weight = matrix_of(self.base)
        return weight + sum(piece.change(weight) for piece in self.chosen())

    @torch.no_grad()
    def merged(self) -> nn.Module:
        """A linear layer."""
        pieces = self.chosen()
        weight, bias = self.weight, self.base.bias
        for piece in pieces:
            if piece.lora_bias is not None:
                assert bias is not None, "a bias to add to"
                bias = bias + (piece.lora_bias * piece.scale).to(bias.dtype)
        return linear_of(weight, bias)


class LoRAEmbedding(Adapted):
    """A table of embeddings (V, E) with low-rank updates."""

    def adjust(self, piece: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        """(...) ids and (..., E) -> (..., E)"""
        assert isinstance(piece, LowRank)
        changed = out + piece.rows(x).to(out.dtype)
        if piece.lora_magnitude_vector is None:
            return changed
        return piece.stretch(matrix_of(self.base)).to(out.dtype) * changed

    @property
    def weight(self) -> Tensor:
        """The table under the active adapters, (V, E)."""
        pieces, table = self.chosen(), self.base.weight
        if not pieces:
            return table
        plain = matrix_of(self.base)
        return (plain + sum(piece.change(plain) for piece in pieces)).to(table.dtype)

    @torch.no_grad()
    def merged(self) -> nn.Module:
        """The table."""
        self.base.weight = nn.Parameter(self.weight.detach())
        return self.base


class LoRARouter(LoRALinear):
    """The router of a mixture with low-rank updates."""

    def forward(self, x: Tensor) -> Any:
        """See `Router`."""
        assert self.rows is None, "see adapters.attach.mixed"
        return self.base(x, self.weight)

    @torch.no_grad()
    def merged(self) -> nn.Module:
        """The router."""
        self.base.weight = nn.Parameter(self.weight.detach())
        return self.base


class LoRAExperts(Adapted):
    """The experts of a mixture, each matrix with an update of its own: an adapter has a `LowRank` for each stack."""

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:  # type: ignore[override]
        """See `Experts`."""
        assert self.rows is None, "see adapters.attach.mixed"
        pieces = self.chosen()

        def product(name: str, x: Tensor) -> Tensor:
            out = self.base.product(name, x, ends)
            for piece in pieces:
                if name in piece:
                    out = out + piece[name](x, ends).to(out.dtype)
            return out

        return self.base.run(x, product)

    def stack(self, name: str) -> Tensor:
        """The matrices `gate_proj`, `up_proj` or `down_proj` under the active adapters, (X, O, I)."""
        matrices, pieces = getattr(self.base, name), [piece[name] for piece in self.chosen() if name in piece]
        dtype = matrices[0].made_from if hasattr(matrices, "dequantized") else matrices.dtype
        return (matrix_of(matrices) + sum(piece.delta() for piece in pieces)).to(dtype)

    @torch.no_grad()
    def merged(self) -> nn.Module:
        """The experts."""
        for name in ("gate_proj", "up_proj", "down_proj"):
            if getattr(self.base, name) is not None:
                matrices = nn.Parameter(self.stack(name).detach())
                delattr(self.base, name)  # which may be 4 bits
                setattr(self.base, name, matrices)
        return self.base
