"""Puts adapters onto a model in place, and says which of them count."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from intaglio.adapters.targets import Place, Places
from intaglio.errors import UserError, nearest
from intaglio.parts.copies import SavedModule, TokenRows, TrainedBias
from intaglio.parts.lora import (
    Adapted,
    LoRAEmbedding,
    LoRAExperts,
    LoRALinear,
    LoRARouter,
    LowRank,
    matrix_of,
)
from intaglio.parts.moe import Router
from intaglio.parts.nf4 import NF4Linear
from intaglio.specs.adapter import LoRASpec

__all__ = [
    "adapter_specs",
    "adapter_state",
    "attach",
    "check_name",
    "detach",
    "disabled",
    "install",
    "mixed",
    "plain",
    "put",
    "set_active",
    "train_only",
    "trainable_share",
    "unwrapped",
    "wrappers",
]


_KINDS: dict[type, type[Adapted]] = {nn.Embedding: LoRAEmbedding, Router: LoRARouter}


def attach(model: Any, spec: LoRASpec, name: str = "default", seed: int = 0) -> None:
    """Gives `model` an adapter to train: it alone counts and trains, everything else is frozen.

    At the start the model computes what it did. Adapters are kept in fp32 at least, whatever the model is in.

    Args:
        model: a language model or a `SequenceClassifier`, with or without adapters, its linear layers plain or NF4.
        spec: what is adapted, and how.
        name: what to call it; letters, digits, `_` and `-`.
        seed: of what is random in it.

    Raises:
        UserError: a module that is not there, a combination that cannot be, a name that is taken.
    """
    places = Places(model)
    if spec.lora_dropout and any(place.ours[0] == "lm_head" for place in places.targets(spec)):
        what = "no dropout can stand before the output matrix, which the loss takes as a whole"
        raise UserError(what, where="lora_dropout", mend="take it out of target_modules, or set lora_dropout to 0")
    install(model, spec, name, torch.Generator().manual_seed(seed))
    train_only(model, name)


def install(
    model: Any, spec: LoRASpec, name: str, generator: torch.Generator | None = None, *, output_rows: bool = True
) -> None:
    """Puts the modules of an adapter in and makes it the one that counts; without `generator` its A are left at 0.

    Without `output_rows`, an output matrix of its own has no trained rows.

    Raises:
        UserError: see `attach`.
    """
    places = Places(model)
    check_name(name)
    if name in adapter_specs(model):
        raise UserError(f"there is an adapter {name!r} already")
    targets = places.once(spec, places.targets(spec))
    saved, biased = places.saved(spec), places.biased(spec)
    tables = places.tables() if spec.trainable_token_indices else []
    tables = tables if output_rows else tables[:1]
    _check(model, spec, places, targets, saved, tables)
    for place in targets:
        _add_low_rank(model, spec, place, name, places.paths(spec, place), generator)
    for place in saved:
        paths = places.paths(spec, place)
        _share(model, paths, paths == places.ties, name, SavedModule)
    for place in tables:
        tied = place.ours[0] in places.ties
        _share(model, places.ties if tied else place.ours, tied, name, TokenRows, spec.trainable_token_indices)
    for path in (path for place in biased for path in place.ours):
        _wrap(model, path, TrainedBias).adapters[name] = TrainedBias.piece(plain(model, path))
    model.adapter_specs = {**adapter_specs(model), name: spec}
    set_active(model, name)


def adapter_specs(model: Any) -> dict[str, LoRASpec]:
    """The adapters that the model holds, by name."""
    return getattr(model, "adapter_specs", {})


def detach(model: Any, name: str) -> None:
    """Takes an adapter off again; parts that no other one needs stand as they did before.

    Raises:
        UserError: there is none of this name.
    """
    _known(model, name)
    for path, wrapper in reversed(list(wrappers(model))):
        if name in wrapper.adapters:
            del wrapper.adapters[name]
        wrapper.active = tuple(other for other in wrapper.active if other != name)
        if not wrapper.adapters:
            put(model, path, wrapper.base)
    model.adapter_specs = {other: spec for other, spec in adapter_specs(model).items() if other != name}


def set_active(model: Any, *names: str) -> None:
    """The adapters that count from now on, one after the other; none: the model as it was.

    Raises:
        UserError: there is none of this name.
    """
    for name in names:
        _known(model, name)
    for _, wrapper in wrappers(model):
        wrapper.active = tuple(name for name in names if name in wrapper.adapters)


@contextmanager
def disabled(model: Any) -> Iterator[None]:
    """The model as it was without adapters, for as long as the block runs."""
    before = [(wrapper, wrapper.active) for _, wrapper in wrappers(model)]
    for wrapper, _ in before:
        wrapper.active = ()
    try:
        yield
    finally:
        for wrapper, active in before:
            wrapper.active = active


@contextmanager
def mixed(model: Any, names: Sequence[str | None]) -> Iterator[None]:
    """One batch for several adapters: `names` has that of each row (B,), or of each token of all rows (B*T,).

    None is the model without one. Every part that is called must see all of these rows.

    Raises:
        UserError: there is none of this name, or it adapts experts, which see tokens sorted by expert.
    """
    wanted = {name for name in names if name is not None}
    for name in wanted:
        _known(model, name)
    every = [wrapper for _, wrapper in wrappers(model)]
    if any(isinstance(wrapper, LoRAExperts) and wanted & set(wrapper.adapters) for wrapper in every):
        raise UserError("an adapter of a mixture's experts cannot share a batch with others")
    chosen = [wrapper for wrapper in every if not isinstance(wrapper, LoRAExperts)]
    for wrapper in chosen:
        wrapper.rows = tuple(names)
    try:
        yield
    finally:
        for wrapper in chosen:
            wrapper.rows = None


def adapter_state(model: Any, name: str) -> dict[str, Tensor]:
    """The tensors of one adapter by their names in the model, what is tied once; for a run to be gone on with."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    kept = model.state_dict().keys()  # not what is derived
    mine = re.compile(rf"\.adapters\.{re.escape(name)}(\.|$)")
    return {key: tensor.detach() for key, tensor in tensors.items() if key in kept and mine.search(key)}


def trainable_share(model: Any) -> tuple[int, int]:
    """Parameters that train, and all there are; a matrix of 4 bits counts with what it stands for."""
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    packed = sum(m.in_features * m.out_features for m in model.modules() if isinstance(m, NF4Linear))
    return trainable, sum(p.numel() for p in model.parameters()) + packed


def wrappers(model: nn.Module) -> Iterator[tuple[str, Adapted]]:
    """Every part that is adapted with its path, from the outside in."""
    for path, module in model.named_modules():
        if isinstance(module, Adapted):
            yield path, module


def plain(model: Any, path: str) -> Any:
    """The part of this path inside all wrappers."""
    return unwrapped(model.get_submodule(path))


def unwrapped(part: Any) -> Any:
    """What is inside all wrappers."""
    return unwrapped(part.base) if isinstance(part, Adapted) else part


def train_only(model: Any, name: str | None) -> None:
    """Lets one adapter train and nothing else; None: nothing at all."""
    model.requires_grad_(False)
    for _, wrapper in wrappers(model):
        if name is not None and name in wrapper.adapters:
            wrapper.adapters[name].requires_grad_(True)


def _known(model: Any, name: str) -> None:
    if name not in adapter_specs(model):
        raise UserError(f"no adapter {name!r}", mend=nearest(name, adapter_specs(model)))


def check_name(name: str) -> None:
    """Refuses what cannot be an adapter's name.

    Raises:
        UserError: something else than letters, digits, `_` and `-`, or a word that torch keeps to itself.
    """
    if not re.fullmatch(r"[\w-]+", name) or hasattr(nn.ModuleDict, name):
        raise UserError(f"{name!r} cannot be an adapter's name", mend="take letters, digits, _ and -")


def _check(
    model: Any, spec: LoRASpec, places: Places, targets: list[Place], saved: list[Place], tables: list[Place]
) -> None:
    """What cannot be together is said before anything is changed."""
    whole = {path for place in (*saved, *tables) for path in places.paths(spec, place)}
    if both := [place for place in targets if whole & set(places.paths(spec, place))]:
        what = f"{both[0].theirs!r} cannot be both a target and trained whole or by rows"
        raise UserError(what, where="target_modules, modules_to_save, trainable_token_indices")
    if tables and any(place in tables for place in saved):
        raise UserError("embeddings that train whole have no single rows to train", where="trainable_token_indices")
    rows = model.spec.vocab_size if spec.trainable_token_indices else 0
    if spec.trainable_token_indices and spec.trainable_token_indices[-1] >= rows:
        what = f"token {spec.trainable_token_indices[-1]} of a vocabulary of {rows}"
        raise UserError(what, where="trainable_token_indices", mend="give the model more rows first")
    if spec.use_dora and spec.ensure_weight_tying and any(place.ours[0] in places.ties for place in targets):
        raise UserError("tied embeddings have rows for one use and columns for the other", where="use_dora")
    if experts := [place for place in targets if place.kind in ("experts", "router")]:
        for refused in ("use_dora", "lora_bias", "lora_dropout"):
            if getattr(spec, refused):
                mend = f"put {experts[0].theirs.rpartition('.')[2]!r} and its like into exclude_modules"
                raise UserError("not for a mixture's experts and their router", where=refused, mend=mend)


def _add_low_rank(
    model: Any,
    spec: LoRASpec,
    place: Place,
    name: str,
    paths: Sequence[str],
    generator: torch.Generator | None,
) -> None:
    rank, scale = spec.rank(*place.names), spec.scale(*place.names)
    if place.kind == "experts":
        path, _, stack = place.ours[0].rpartition(".")
        matrices = getattr(model.get_submodule(path), stack)
        like = matrices if isinstance(matrices, Tensor) else next(matrices.buffers())  # 4 bits
        piece = LowRank(matrices.shape, rank, scale, spec, like)
        piece.start(lambda: matrix_of(matrices).detach(), generator)
        experts = _wrap(model, path, LoRAExperts).adapters
        stacks: Any = experts[name] if name in experts else nn.ModuleDict()
        stacks[stack] = piece
        experts[name] = stacks
        return
    tied = len(paths) > len(place.ours)
    shared = _low_rank(model.get_submodule(paths[0]), rank, scale, spec, generator) if tied else None
    for path in paths:
        part = model.get_submodule(path)
        cls = _KINDS.get(type(unwrapped(part)), LoRALinear)
        piece = shared or _low_rank(part, rank, scale, spec, generator)
        _wrap(model, path, cls).adapters[name] = piece


def _low_rank(part: Any, rank: int, scale: float, spec: LoRASpec, generator: torch.Generator | None) -> LowRank:
    embeds = isinstance(unwrapped(part), nn.Embedding)
    like = next(iter([*unwrapped(part).parameters(), *unwrapped(part).buffers()]))
    shape = (part.out_features, part.in_features) if hasattr(part, "in_features") else like.shape
    piece = LowRank(shape, rank, scale, spec, like, columns=embeds)
    piece.start(lambda: matrix_of(unwrapped(part)).detach(), generator)
    return piece


def _share(
    model: Any, paths: Sequence[str], tied: bool, name: str, cls: type[SavedModule] | type[TokenRows], *more: Any
) -> None:
    """A copy of each part, or of some of its rows; those of parts that are tied are tied too."""
    pieces = [cls.piece(plain(model, path), *more) for path in paths]
    for path, piece in zip(paths, pieces, strict=True):
        if tied:
            piece.weight = pieces[0].weight
        _wrap(model, path, cls).adapters[name] = piece


def _wrap(model: Any, path: str, cls: type[Adapted]) -> Adapted:
    """The wrapper of this kind around a part, put there if there is none."""
    part = outermost = model.get_submodule(path)
    while isinstance(part, Adapted):
        if type(part) is cls:
            return part
        part = part.base
    wrapper = cls(outermost)
    wrapper.train(outermost.training)
    put(model, path, wrapper)
    return wrapper


def put(model: Any, path: str, part: nn.Module) -> None:
    """Puts a part where another one stands."""
    parent, _, attribute = path.rpartition(".")
    setattr(model.get_submodule(parent), attribute, part)
