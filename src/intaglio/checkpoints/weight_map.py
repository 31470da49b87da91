"""Weights by another layout's names: a declarative map per family, its inverse derived from it.

A rule names one of their tensors and the tensor of ours it becomes; `{}` stands for the number of a layer, a second
`{}` for that of an expert. Where more than the name differs, a transform says how, in both directions.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from intaglio.models.quantize import plain_tensors
from intaglio.specs import LatentAttentionSpec

__all__ = [
    "Joined",
    "JoinedByHead",
    "Link",
    "Rules",
    "Stacked",
    "Transform",
    "Transposed",
    "TurnedPairs",
    "links_of",
    "their_shapes",
]


class Transform(Protocol):
    """A change of layout. Lists hold the tensors of one rule, in its order."""

    def to_ours(self, theirs: list[Tensor], spec: Any) -> list[Tensor]: ...

    def to_theirs(self, ours: list[Tensor], spec: Any) -> list[Tensor]: ...


class Same:
    """Only the name differs."""

    def to_ours(self, theirs: list[Tensor], spec: Any) -> list[Tensor]:
        return theirs

    def to_theirs(self, ours: list[Tensor], spec: Any) -> list[Tensor]:
        return ours


class Transposed:
    """(in, out) there, (out, in) here: OpenAI's matrices."""

    def to_ours(self, theirs: list[Tensor], spec: Any) -> list[Tensor]:
        return [tensor.mT for tensor in theirs]

    to_theirs = to_ours


@dataclass(frozen=True)
class Joined:
    """One tensor there is several here, one behind the other; `transposed` as in `Transposed`."""

    parts: int = 3
    transposed: bool = False

    def to_ours(self, theirs: list[Tensor], spec: Any) -> list[Tensor]:
        whole = theirs[0].mT if self.transposed else theirs[0]
        return list(whole.chunk(self.parts, dim=0))

    def to_theirs(self, ours: list[Tensor], spec: Any) -> list[Tensor]:
        whole = torch.cat(ours, dim=0)
        return [whole.mT if self.transposed else whole]


class JoinedByHead:
    """One tensor there holds query, key and value of the first head, then of the second, ... (GPT-NeoX)."""

    def to_ours(self, theirs: list[Tensor], spec: Any) -> list[Tensor]:
        heads = spec.blocks[0].attention.num_heads
        by_head = theirs[0].unflatten(0, (heads, 3, -1))
        return [by_head[:, part].flatten(0, 1) for part in range(3)]

    def to_theirs(self, ours: list[Tensor], spec: Any) -> list[Tensor]:
        heads = spec.blocks[0].attention.num_heads
        by_head = torch.stack([tensor.unflatten(0, (heads, -1)) for tensor in ours], dim=1)
        return [by_head.flatten(0, 2)]


class Stacked:
    """A tensor per expert there, one stack of them here."""

    def to_ours(self, theirs: list[Tensor], spec: Any) -> list[Tensor]:
        return [torch.stack(theirs)]

    def to_theirs(self, ours: list[Tensor], spec: Any) -> list[Tensor]:
        return list(ours[0].unbind(0))


@dataclass(frozen=True)
class TurnedPairs:
    """Rotary pairs stand side by side there (0 1, 2 3, ...), half a head apart here (DeepSeek's latent attention).

    Attributes:
        by_head: the rows are those of every head (queries), or of one shared key behind the latent.
    """

    by_head: bool

    def to_ours(self, theirs: list[Tensor], spec: Any) -> list[Tensor]:
        return [self._reorder(theirs[0], spec, lambda rows: rows.unflatten(1, (-1, 2)).transpose(1, 2))]

    def to_theirs(self, ours: list[Tensor], spec: Any) -> list[Tensor]:
        return [self._reorder(ours[0], spec, lambda rows: rows.unflatten(1, (2, -1)).transpose(1, 2))]

    def _reorder(self, tensor: Tensor, spec: Any, pairs: Callable[[Tensor], Tensor]) -> Tensor:
        attention = spec.blocks[0].attention
        assert isinstance(attention, LatentAttentionSpec)
        rows = tensor.unflatten(0, (attention.num_heads if self.by_head else 1, -1))
        still, turned = rows.split((rows.shape[1] - attention.qk_rope_head_dim, attention.qk_rope_head_dim), dim=1)
        return torch.cat((still, pairs(turned).flatten(1, 2)), dim=1).flatten(0, 1)


Rules = Mapping[str, str | tuple[tuple[str, ...], Transform]]
"""Their name pattern -> ours, or ours and how."""


@dataclass(frozen=True)
class Link:
    """One rule at one layer: their names, ours, and the way between."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    transform: Transform


def links_of(model: nn.Module, rules: Rules | None) -> list[Link]:
    """Every tensor of `model` (tied ones once), linked to what it is called elsewhere; no rules: as it is here."""
    tensors = plain_tensors(model)
    if rules is None:
        return [Link((name,), (name,), Same()) for name in tensors]
    by_pattern = {ours[0]: (theirs, ours, transform) for theirs, ours, transform in _normal(rules)}
    joined = {name for _, ours, _ in by_pattern.values() for name in ours[1:]}
    links = []
    for name, tensor in tensors.items():
        layer, pattern = _layer_of(name)
        if pattern in joined:
            continue
        assert pattern in by_pattern, f"no rule for {name}"
        theirs, ours, transform = by_pattern[pattern]
        names = _their_names(theirs, layer, tensor)
        links.append(Link(names, tuple(our.format(layer) for our in ours), transform))
    return links


def _normal(rules: Rules) -> list[tuple[str, tuple[str, ...], Transform]]:
    return [(theirs, (ours,), Same()) if isinstance(ours, str) else (theirs, *ours) for theirs, ours in rules.items()]


def _layer_of(name: str) -> tuple[str, str]:
    """`layers.3.attention.q_proj.weight` -> 3 and `layers.{}.attention.q_proj.weight`."""
    match = re.search(r"\.(\d+)\.", name)
    return (match[1], name.replace(match[0], ".{}.", 1)) if match else ("", name)


def _their_names(theirs: str, layer: str, ours: Tensor) -> tuple[str, ...]:
    if theirs.count("{}") < 2:
        return (theirs.format(layer),)
    return tuple(theirs.format(layer, expert) for expert in range(ours.shape[0]))


def their_shapes(model: nn.Module, links: Sequence[Link], spec: Any) -> dict[str, tuple[int, ...]]:
    """The shape each of their tensors must have, from ours, without numbers."""
    tensors = plain_tensors(model)
    shapes: dict[str, tuple[int, ...]] = {}
    for link in links:
        ours = [torch.empty_like(tensors[name], device="meta") for name in link.ours]
        outside = link.transform.to_theirs(ours, spec)
        shapes |= {name: tuple(tensor.shape) for name, tensor in zip(link.theirs, outside, strict=True)}
    return shapes
