"""What adapters train whole: copies of a part, some rows of a table, a bias. The part itself stays as it was.

Legend: O features out, V vocabulary, E features of the model.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio.parts.lora import Adapted, linear_of

__all__ = ["SavedModule", "TokenRows", "TrainedBias"]


class _Rows(nn.Module):
    """Rows of a table that train, and which of them."""

    indices: Tensor
    places: Tensor

    def __init__(self, table: Tensor, indices: Sequence[int]) -> None:
        super().__init__()
        taken = torch.tensor(indices, device=table.device)
        places = torch.full((table.shape[0],), -1, device=table.device)
        places[taken] = torch.arange(len(indices), device=table.device)
        self.register_buffer("indices", taken, persistent=False)
        self.register_buffer("places", places, persistent=False)  # (V,): which of the rows an id has, or -1
        self.weight = nn.Parameter(table[taken].to(torch.promote_types(table.dtype, torch.float32)))


class TokenRows(Adapted):
    """An embedding, or an output matrix, some of whose rows are trained in its place."""

    @staticmethod
    def piece(part: Any, indices: Sequence[int]) -> nn.Module:
        """The rows to train, as they are now."""
        return _Rows(part.weight.detach(), indices)

    def adjust(self, piece: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        """(...) ids and (..., E) -> (..., E); or (..., E) and (..., V) -> (..., V)"""
        assert isinstance(piece, _Rows)
        if x.is_floating_point():
            scores = F.linear(x.to(piece.weight.dtype), piece.weight)
            return out.index_copy(-1, piece.indices, scores.to(out.dtype))
        places = piece.places[x]
        return torch.where((places >= 0)[..., None], F.embedding(places.clamp(min=0), piece.weight).to(out.dtype), out)

    @property
    def weight(self) -> Tensor:
        """The whole table, (V, E)."""
        table: Tensor = self.base.weight
        for piece in self.chosen():
            table = table.index_copy(0, piece.indices, piece.weight.to(table.dtype))
        return table

    @torch.no_grad()
    def merged(self) -> nn.Module:
        """The part itself."""
        self.base.weight = nn.Parameter(self.weight.detach())
        return self.base


class SavedModule(Adapted):
    """A part that is trained whole, as a copy; the part itself stays as it was."""

    @staticmethod
    def piece(part: Any) -> nn.Module:
        """The copy, in fp32 at least."""
        if hasattr(part, "dequantized"):
            return linear_of(part.dequantized(), None if part.bias is None else part.bias.float().clone())
        dtype = torch.promote_types(next(part.parameters()).dtype, torch.float32)
        return copy.deepcopy(part).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """As the part itself."""
        if self.rows is None and self.chosen():
            return self._copy(self.chosen()[-1], x)
        return super().forward(x)

    def adjust(self, piece: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        """The copy's output."""
        return self._copy(piece, x)

    def _copy(self, piece: nn.Module, x: Tensor) -> Tensor:
        kept = next(self.base.parameters()).dtype
        dtype = next(piece.parameters()).dtype
        out: Tensor = piece(x.to(dtype) if x.is_floating_point() else x)
        return out.to(x.dtype if x.is_floating_point() else kept)

    @property
    def weight(self) -> Tensor:
        """That of the copy, in the dtype of the part's."""
        pieces = self.chosen()
        weight: Tensor = self.base.weight
        return pieces[-1].weight.to(weight.dtype) if pieces else weight

    @torch.no_grad()
    def merged(self) -> nn.Module:
        """The copy, in the dtype of the part."""
        pieces = self.chosen()
        return pieces[-1].to(next(self.base.parameters()).dtype).requires_grad_(False) if pieces else self.base


class _Bias(nn.Module):
    """A bias that trains, and what it was before."""

    before: Tensor

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("before", bias.clone(), persistent=False)
        self.bias = nn.Parameter(bias.to(torch.promote_types(bias.dtype, torch.float32), copy=True))


class TrainedBias(Adapted):
    """A linear layer or a norm whose bias is trained, as a copy."""

    @staticmethod
    def piece(part: Any) -> nn.Module:
        """The bias to train, as it is now."""
        return _Bias(part.bias.detach())

    def adjust(self, piece: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        """(..., O) -> (..., O)"""
        assert isinstance(piece, _Bias)
        return out + (piece.bias - piece.before).to(out.dtype)

    @property
    def weight(self) -> Tensor:
        """That of the part."""
        return self.base.weight

    @torch.no_grad()
    def merged(self) -> nn.Module:
        """The part itself."""
        for piece in self.chosen():
            bias = self.base.bias + (piece.bias - piece.before)  # which a low-rank update may have changed too
            self.base.bias = nn.Parameter(bias.to(self.base.bias.dtype))
        return self.base
