"""The tensors of an adapter by the names they have in PEFT's files: out of a model, and into one.

Where several of our modules are one there, it has one A: read, theirs is everybody's; written, ours are stacked and B
has a block for each. The experts of a layer are one parameter in transformers 5, which has their ranks side by side;
files from before have an entry for each expert, and are read too.

Legend: I features in, O features out, r rank, X experts.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intaglio.adapters.attach import wrappers
from intaglio.adapters.peft_config import Rank
from intaglio.adapters.targets import Place, Places
from intaglio.errors import UserError
from intaglio.parts.copies import SavedModule, TokenRows, TrainedBias
from intaglio.parts.lora import Adapted, LoRAExperts, LowRank
from intaglio.specs.adapter import LoRASpec

__all__ = ["Found", "factors", "fill", "tensors_of"]

_VECTORS = {"lora_B.bias": "lora_bias", "lora_magnitude_vector": "lora_magnitude_vector"}


class Found:
    """The tensors of a file that nobody has asked for yet.

    Args:
        tensors: by their names.
        where: the file.
    """

    def __init__(self, tensors: dict[str, Tensor], where: str) -> None:
        self.left, self.where = dict(tensors), where

    def take(self, name: str) -> Tensor:
        """One of them.

        Raises:
            UserError: there is none of this name.
        """
        if name not in self.left:
            raise UserError(f"tensor {name!r} is missing", where=self.where)
        return self.left.pop(name)

    def put(self, into: Tensor, tensor: Tensor, name: str) -> None:
        """Copies a tensor into one of the model's.

        Raises:
            UserError: their shapes differ.
        """
        if into.shape != tensor.shape:
            what = f"tensor {name!r} has shape {list(tensor.shape)}, the model asks for {list(into.shape)}"
            raise UserError(what, where=self.where)
        with torch.no_grad():
            into.copy_(tensor)

    def drop(self, *names: str) -> None:
        """What says something a second time."""
        for name in names:
            self.left.pop(name, None)


def tensors_of(model: Any, spec: LoRASpec, name: str) -> tuple[list[Rank], dict[str, Tensor]]:
    """What an adapter does to each module of theirs, and all its tensors by their names."""
    places, pieces = Places(model), _pieces(model, name)
    ranks: list[Rank] = []
    tensors: dict[str, Tensor] = {}
    targets = places.once(spec, places.targets(spec))
    for place in (place for place in targets if place.kind != "experts"):
        parts = [pieces[path] for path in place.ours]
        rank, made = _embedding(parts[0]) if place.kind == "embedding" else _linear(place, parts)
        ranks.append(Rank(place.target, place.kind == "router", rank, parts[0].scale))
        tensors |= {f"{place.module}.{key}": tensor for key, tensor in made.items()}
        for twin in places.twins(spec, place):  # the output matrix, as PEFT repeats it
            tensors |= {f"{twin.module}.{key}": tensor for key, tensor in _linear(twin, parts)[1].items()}
    for key, target, members in _stacks(targets):
        found = [pieces.get(path) for path in members]
        a, b = _joined_experts(found)
        ranks.append(Rank(target, True, a.shape[1], next(filter(None, found)).scale))
        tensors[f"{key}.lora_A.weight"] = a.flatten(0, 1)  # (X*r, I)
        tensors[f"{key}.lora_B.weight"] = b.permute(1, 2, 0).flatten(1)  # (O, r*X)
    whole = {key: place.to_theirs(ours, parameter) for key, place, parameter, ours in _whole(model, spec, places, name)}
    return ranks, tensors | whole


def fill(model: Any, spec: LoRASpec, name: str, found: Found) -> None:
    """Gives the adapter `name`, which is in place, the tensors of a file.

    Raises:
        UserError: one is missing or of the wrong shape.
    """
    places, pieces = Places(model), _pieces(model, name)
    targets = places.once(spec, places.targets(spec))
    for place in (place for place in targets if place.kind != "experts"):
        _fill(place, [pieces[path] for path in place.ours], found)
        for twin in places.twins(spec, place):
            found.drop(*(f"{twin.module}.lora_{matrix}.weight" for matrix in "AB"))
    for key, _, members in _stacks(targets):
        _fill_experts(key, [(path, pieces.get(path)) for path in members], targets, found)
    for key, place, parameter, ours in _whole(model, spec, places, name):
        for into, part in zip(ours, place.to_ours(found.take(key), parameter), strict=True):
            found.put(into, part, key)


def _pieces(model: Any, name: str) -> dict[str, LowRank]:
    """The low-rank updates of an adapter, by the path of the matrix that each is for."""
    pieces: dict[str, LowRank] = {}
    for path, wrapper in wrappers(model):
        if name in wrapper.adapters:
            piece: Any = wrapper.adapters[name]
            if isinstance(wrapper, LoRAExperts):
                pieces |= {f"{_bare(path)}.{stack}": one for stack, one in piece.items()}
            elif isinstance(piece, LowRank):
                pieces[_bare(path)] = piece
    return pieces


def _bare(path: str) -> str:
    """The path of what is wrapped, as it is without wrappers."""
    return ".".join(word for word in path.split(".") if word != "base")


def factors(piece: LowRank) -> tuple[Tensor, Tensor]:
    """A and B of a plain adapter that does the same: with what it started from as further ranks."""
    if piece.start_A is None or piece.start_B is None:
        return piece.lora_A.detach(), piece.lora_B.detach()
    a = torch.cat((piece.lora_A.detach(), piece.start_A), dim=-2)
    return a, torch.cat((piece.lora_B.detach(), -piece.start_B), dim=-1)


def _join(factors: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, list[Tensor]]:
    """One A for all, and each one's B (.., O, r) for that: as they are where the A are the same, else side by side."""
    if all(torch.equal(a, factors[0][0]) for a, _ in factors):
        return factors[0][0], [b for _, b in factors]
    rank, parts, before = sum(a.shape[-2] for a, _ in factors), [], 0
    for a, b in factors:
        parts.append(F.pad(b, (before, rank - before - a.shape[-2])))
        before += a.shape[-2]
    return torch.cat([a for a, _ in factors], dim=-2), parts


def _linear(place: Place, parts: Sequence[LowRank]) -> tuple[int, dict[str, Tensor]]:
    """The rank and the tensors of a module of theirs, from those of ours that it is."""
    a, b = _join([factors(part) for part in parts])
    made = {"lora_A.weight": a, "lora_B.weight": place.columns_to_theirs(b)}
    for key, attribute in _VECTORS.items():
        vectors = [getattr(part, attribute) for part in parts]
        if vectors[0] is not None:
            made[key] = place.columns_to_theirs([vector.detach()[:, None] for vector in vectors])[:, 0]
    return len(a), made


def _embedding(piece: LowRank) -> tuple[int, dict[str, Tensor]]:
    a, b = factors(piece)
    made = {"lora_embedding_A": b.mT, "lora_embedding_B": a.mT}
    if piece.lora_magnitude_vector is not None:
        made["lora_magnitude_vector"] = piece.lora_magnitude_vector.detach()
    return len(a), made


def _fill(place: Place, parts: Sequence[LowRank], found: Found) -> None:
    names = (
        ("lora_embedding_B", "lora_embedding_A") if place.kind == "embedding" else ("lora_A.weight", "lora_B.weight")
    )
    a, b = (found.take(f"{place.module}.{name}") for name in names)
    ours = [b.mT] if place.kind == "embedding" else place.columns_to_ours(b)
    for part, block in zip(parts, ours, strict=True):
        found.put(part.lora_A, a.mT if place.kind == "embedding" else a, f"{place.module}.{names[0]}")
        found.put(part.lora_B, block, f"{place.module}.{names[1]}")
    for key, attribute in _VECTORS.items():
        vectors = [getattr(part, attribute) for part in parts]
        if vectors[0] is not None:
            column = found.take(f"{place.module}.{key}")[:, None]
            blocks = [column] if place.kind == "embedding" else place.columns_to_ours(column)
            for vector, block in zip(vectors, blocks, strict=True):
                found.put(vector, block[:, 0], f"{place.module}.{key}")


def _stacks(targets: Sequence[Place]) -> Iterator[tuple[str, str, list[str]]]:
    """For each parameter of experts: the module's name in a file, the parameter's, and the stacks of ours that it is.

    Where a module has two, the file's name of the inner one is that of `gate_up_proj`.
    """
    fused: dict[tuple[str, str], list[str]] = {}
    for place in targets:
        if place.kind == "experts":
            fused.setdefault(place.fused, []).append(place.ours[0])
    for (container, parameter), members in fused.items():
        inner = parameter == "gate_up_proj" and (container, "down_proj") in fused
        stack = members[0].rpartition(".")[0]
        both = [f"{stack}.gate_proj", f"{stack}.up_proj"] if parameter == "gate_up_proj" else members
        yield f"{container}.base_layer" if inner else container, f"{container}.{parameter}", both


def _joined_experts(parts: Sequence[LowRank | None]) -> tuple[Tensor, Tensor]:
    """A (X, r, I) and B (X, O, r) of a parameter that holds several stacks, one without an update among them."""
    known = [factors(part) for part in parts if part is not None]
    a, b = _join([factors(part) if part is not None else (known[0][0], 0 * known[0][1]) for part in parts])
    return a, torch.cat(b, dim=-2)


def _fill_experts(
    key: str, members: Sequence[tuple[str, LowRank | None]], targets: Sequence[Place], found: Found
) -> None:
    theirs = {place.ours[0]: place.theirs for place in targets}
    if any(f"{theirs[path]}.lora_A.weight" in found.left for path, part in members if part is not None):
        for path, part in members:
            if part is not None:
                _fill_one_by_one(theirs[path], part, found)
        return
    a, b = (found.take(f"{key}.lora_{matrix}.weight") for matrix in "AB")
    experts = next(part for _, part in members if part is not None).lora_A.shape[0]
    b = b.unflatten(1, (-1, experts)).permute(2, 0, 1)  # (X, O, r)
    for (_, part), block in zip(members, b.chunk(len(members), dim=1), strict=True):
        if part is not None:
            found.put(part.lora_A, a.unflatten(0, (experts, -1)), f"{key}.lora_A.weight")
            found.put(part.lora_B, block, f"{key}.lora_B.weight")


def _fill_one_by_one(theirs: str, part: LowRank, found: Found) -> None:
    """From a file with an entry for each expert."""
    for matrix, into in (("A", part.lora_A), ("B", part.lora_B)):
        for expert, one in enumerate(into):
            name = f"{theirs.replace('.experts.0.', f'.experts.{expert}.')}.lora_{matrix}.weight"
            found.put(one, found.take(name), name)


def _whole(model: Any, spec: LoRASpec, places: Places, name: str) -> Iterator[tuple[str, Place, str, list[Tensor]]]:
    """What is trained in place of something: its name in a file, the place, the parameter, and those of ours."""
    adapted = {place.theirs for place in places.targets(spec)}
    for place in places.saved(spec):
        copies = [_piece(model, path, SavedModule, name) for path in place.ours]
        for same in (place, *places.twins(spec, place)):
            for parameter in place.transforms:
                key = f"{same.module}.{parameter}"
                yield key, place, parameter, [getattr(copy, parameter).detach() for copy in copies]
    if spec.trainable_token_indices:
        for place in places.tables():
            rows = _piece(model, place.ours[0], TokenRows, name)
            if rows is not None:
                yield f"{place.module}.token_adapter.trainable_tokens_delta", place, "weight", [rows.weight.detach()]
    for place in places.biased(spec):
        biases = [_piece(model, path, TrainedBias, name).bias.detach() for path in place.ours]
        yield f"{place.module}{'.base_layer' if place.theirs in adapted else ''}.bias", place, "bias", biases


def _piece(model: Any, path: str, cls: type[Adapted], name: str) -> Any:
    """What an adapter has in the wrapper of one kind around a part, or None."""
    part = model.get_submodule(path)
    while isinstance(part, Adapted):
        if type(part) is cls and name in part.adapters:
            return part.adapters[name]
        part = part.base
    return None
