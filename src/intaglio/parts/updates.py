"""What an adapter does to the parts of a model that only generates: it changes, in place, what a part has made.

Here nothing trains, so whatever can be multiplied beforehand is: all variants of LoRA come down to one form, whatever
the part is made of. None of them asks for the part's own matrix, which may be packed or of a few bits.

Legend: I features in, O features out, r rank, V vocabulary, E features of the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["AdapterUpdates", "Affine", "NewRows", "Replaced", "Slices", "Update", "joined"]


class Update(Protocol):
    """What one adapter does to one part."""

    def apply_(self, out: Tensor, x: Tensor) -> None:
        """Changes what the part made of `x`.

        Args:
            out: (..., O); may be a view.
            x: (..., I), or the ids (...) that an embedding is given.
        """

    def to(self, device: torch.device, dtype: torch.dtype) -> "Update":
        """The same on a device, in a dtype."""


@dataclass(frozen=True)
class Affine:
    """stretch * out + x inner outer + shift; what is None is left out.

    For an embedding x is a row number of `inner`. The factors are contiguous as they stand here: products of few rows
    take half as long so.

    Attributes:
        inner: A transposed, (I, r); of an embedding (V, r).
        outer: s B transposed, and with DoRA that times the stretch, (r, O).
        stretch: DoRA's m / ||W + s B A||, (O,).
        shift: (O,), what comes to a bias.
    """

    inner: Tensor | None = None
    outer: Tensor | None = None
    stretch: Tensor | None = None
    shift: Tensor | None = None

    def apply_(self, out: Tensor, x: Tensor) -> None:
        """See `Update`; the sum is rounded once."""
        if self.stretch is None:
            added = self._added(x)
            if added is not None:
                out.add_(added)
        else:
            stretched = out * self.stretch
            added = self._added(x)
            out.copy_(stretched if added is None else stretched + added)

    def _added(self, x: Tensor) -> Tensor | None:
        if self.inner is None or self.outer is None:
            return self.shift
        low = x.to(self.inner.dtype) @ self.inner if x.is_floating_point() else F.embedding(x, self.inner)  # (..., r)
        return low @ self.outer if self.shift is None else low @ self.outer + self.shift

    def to(self, device: torch.device, dtype: torch.dtype) -> "Affine":
        """See `Update`."""
        parts = (self.inner, self.outer, self.stretch, self.shift)
        return Affine(*(None if part is None else part.to(device, dtype) for part in parts))


@dataclass(frozen=True)
class NewRows:
    """Some rows of a table are others: what is looked up there, or the scores of an output matrix.

    Attributes:
        indices: (n,), growing.
        weight: (n, E).
    """

    indices: Tensor
    weight: Tensor

    def apply_(self, out: Tensor, x: Tensor) -> None:
        """See `Update`."""
        if x.is_floating_point():
            out.index_copy_(-1, self.indices, F.linear(x.to(self.weight.dtype), self.weight).to(out.dtype))
            return
        places = torch.searchsorted(self.indices, x).clamp(max=len(self.indices) - 1)  # (...)
        mine = (self.indices[places] == x)[..., None]
        out.copy_(torch.where(mine, self.weight[places].to(out.dtype), out))

    def to(self, device: torch.device, dtype: torch.dtype) -> "NewRows":
        """See `Update`."""
        return NewRows(self.indices.to(device), self.weight.to(device, dtype))


@dataclass(frozen=True)
class Replaced:
    """Another part in its place, of the same kind but with weights of its own."""

    part: nn.Module

    def apply_(self, out: Tensor, x: Tensor) -> None:
        """See `Update`."""
        dtype = next(self.part.parameters()).dtype
        out.copy_(self.part(x.to(dtype) if x.is_floating_point() else x))

    def to(self, device: torch.device, dtype: torch.dtype) -> "Replaced":
        """See `Update`."""
        return Replaced(self.part.to(device, dtype))


@dataclass(frozen=True)
class Slices:
    """Updates of parts that were joined into one, the outputs of each standing in a slice of its own."""

    parts: Sequence[tuple[slice, Update]]

    def apply_(self, out: Tensor, x: Tensor) -> None:
        """See `Update`."""
        for where, update in self.parts:
            update.apply_(out[..., where], x)

    def to(self, device: torch.device, dtype: torch.dtype) -> "Slices":
        """See `Update`."""
        return Slices([(where, update.to(device, dtype)) for where, update in self.parts])


@dataclass(frozen=True)
class AdapterUpdates:
    """An adapter, ready to be served.

    Attributes:
        parts: by the path of the part in the model, as that is built and not packed.
        notes: a line each for what a user should know.
    """

    parts: Mapping[str, Update]
    notes: tuple[str, ...] = ()


def joined(parts: Sequence[tuple[slice, Update]], size: int) -> Update:
    """The updates of parts that were joined as one update: in two products, where that can be.

    Args:
        parts: where each one's outputs stand.
        size: outputs of all together.
    """
    affine = [(where, update) for where, update in parts if isinstance(update, Affine)]
    if len(affine) < len(parts):
        return Slices(parts)
    inner, outer = _factors(affine, size)
    like = next(part for _, one in affine for part in (one.outer, one.stretch, one.shift) if part is not None)
    stretch = _placed([(where, one.stretch) for where, one in affine], like.new_ones(size))
    return Affine(inner, outer, stretch, _placed([(where, one.shift) for where, one in affine], like.new_zeros(size)))


def _factors(parts: Sequence[tuple[slice, Affine]], size: int) -> tuple[Tensor | None, Tensor | None]:
    """A's beside each other and B's as blocks; where all have one A, that one."""
    known = [(where, one.inner, one.outer) for where, one in parts if one.inner is not None and one.outer is not None]
    if not known:
        return None, None
    first = known[0][1]
    alike = all(inner.shape == first.shape and torch.equal(inner, first) for _, inner, _ in known)
    inner = first if alike else torch.cat([inner for _, inner, _ in known], dim=1)
    outer, before = inner.new_zeros(inner.shape[1], size), 0
    for where, _, block in known:
        outer[before : before + len(block), where] = block
        before += 0 if alike else len(block)
    return inner, outer


def _placed(vectors: Sequence[tuple[slice, Tensor | None]], into: Tensor) -> Tensor | None:
    """Vectors in their places; None where there are none."""
    if all(vector is None for _, vector in vectors):
        return None
    for where, vector in vectors:
        if vector is not None:
            into[where] = vector
    return into
