"""Several adapters beside one model: every row of a step is computed under its own, or under none, in one forward.

The model stays as it is, packed or not. An update is a hook on the part that it is for, and changes the rows of its
adapter in what the part has made. A step has the rows of one adapter behind each other, so they are slices; rows of no
adapter are not touched.

Legend: N rows of a step.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import count, groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from intaglio.engine.packed import part_of
from intaglio.errors import UserError, nearest
from intaglio.models.heads import decoder_of
from intaglio.parts.updates import AdapterUpdates, Update, joined

__all__ = ["NO_ADAPTER", "Adapters"]

NO_ADAPTER = 0
"""The number of the model without an adapter."""

Runs = list[tuple[int, slice | None]]
"""The adapters of a step, and the rows of each; None where one has them all."""


@dataclass
class _Loaded:
    """An adapter in the engine.

    Attributes:
        number: unlike that of any other one ever loaded.
        layers: that it changes.
        users: requests that run under it.
        named: whether it can still be asked for.
    """

    number: int
    layers: frozenset[int]
    users: int = 0
    named: bool = True


@dataclass
class _Step:
    """What is being computed.

    Attributes:
        runs: whose rows are where.
        whole: whether a product must have all rows, whoever they are for.
    """

    whole: bool
    runs: Runs = field(default_factory=list)


class Adapters:
    """The adapters of one engine.

    Args:
        model: a decoder, or one with a head.
        deterministic: see `Runner`: products always have a step's whole rows then.
    """

    def __init__(self, model: nn.Module, *, deterministic: bool = False) -> None:
        self._model = model
        weight = decoder_of(model).embed_tokens.weight
        self._device, self._dtype = weight.device, torch.promote_types(weight.dtype, torch.float32)
        self._step = _Step(deterministic)
        self._numbers = count(NO_ADAPTER + 1)
        self._names: dict[str, _Loaded] = {}
        self._loaded: dict[int, _Loaded] = {}
        self._hooks: dict[nn.Module, _Hook] = {}

    @property
    def names(self) -> list[str]:
        """What can be asked for, as it was loaded."""
        return list(self._names)

    def load(self, name: str, updates: AdapterUpdates) -> None:
        """Takes an adapter in.

        Raises:
            UserError: the name is taken.
        """
        if name in self._names:
            raise UserError(f"there is an adapter {name!r} already", mend="unload it first, or take another name")
        with torch.inference_mode():
            placed = {part: self._ready(part, found) for part, found in _placed(self._model, updates).items()}
        number = next(self._numbers)
        for part, update in placed.items():
            if part not in self._hooks:
                self._hooks[part] = _Hook(part, self._step)
            self._hooks[part].updates[number] = update
        self._names[name] = self._loaded[number] = _Loaded(number, _layers(updates.parts))

    def unload(self, name: str) -> None:
        """Nobody gets it any more; it goes when the last request that runs under it has ended.

        Raises:
            UserError: there is none of this name.
        """
        gone = self._find(name)
        del self._names[name]
        gone.named = False
        self._drop_unused(gone)

    def number(self, name: str | None) -> int:
        """The number of an adapter.

        Raises:
            UserError: there is none of this name.
        """
        return NO_ADAPTER if name is None else self._find(name).number

    def take(self, number: int) -> None:
        """One more request runs under an adapter."""
        if number != NO_ADAPTER:
            self._loaded[number].users += 1

    def leave(self, number: int) -> None:
        """One of them has ended."""
        if number != NO_ADAPTER:
            left = self._loaded[number]
            left.users -= 1
            self._drop_unused(left)

    def layers(self, numbers: Sequence[int]) -> frozenset[int]:
        """The layers that any of some adapters change."""
        return frozenset().union(*(self._loaded[number].layers for number in set(numbers) - {NO_ADAPTER}))

    def running(self, rows: Sequence[tuple[int, int]]) -> AbstractContextManager[None]:
        """What is computed now: adapters, and how many rows each one has there, in order."""
        return self._computing(_runs(rows))

    def alone(self, name: str | None) -> AbstractContextManager[None]:
        """All that is computed now is under one adapter, or under none.

        Raises:
            UserError: there is none of this name.
        """
        number = self.number(name)
        return self._computing([] if number == NO_ADAPTER else [(number, None)])

    @contextmanager
    def _computing(self, runs: Runs) -> Iterator[None]:
        self._step.runs = runs
        try:
            yield
        finally:
            self._step.runs = []

    def _find(self, name: str) -> _Loaded:
        if name not in self._names:
            raise UserError(f"no adapter {name!r}", mend=nearest(name, self._names))
        return self._names[name]

    def _ready(self, part: Any, found: Sequence[tuple[slice | None, Update]]) -> Update:
        """The one update of a part, where it will be used."""
        sliced = [(where, update) for where, update in found if where is not None]
        update = joined(sliced, part.out_features) if sliced else found[0][1]
        return update.to(self._device, self._dtype)

    def _drop_unused(self, one: _Loaded) -> None:
        if one.named or one.users:
            return
        del self._loaded[one.number]
        for part, hook in list(self._hooks.items()):
            hook.updates.pop(one.number, None)
            if not hook.updates:
                hook.handle.remove()
                del self._hooks[part]


class _Hook:
    """All updates of one part."""

    def __init__(self, part: nn.Module, step: _Step) -> None:
        self.updates: dict[int, Update] = {}
        self._step = step
        self.handle: RemovableHandle = part.register_forward_hook(self._changed)

    def _changed(self, part: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        runs = [(self.updates[number], rows) for number, rows in self._step.runs if number in self.updates]
        if not runs:
            return
        x = args[0]
        if runs[0][1] is not None and out.ndim > 2:  # (1, N, ...); else the rows whose scores are wanted
            x, out = x[0], out[0]
        for update, rows in runs:
            if rows is None:
                update.apply_(out, x)
            elif self._step.whole:
                made = out.clone()
                update.apply_(made, x)
                out[rows] = made[rows]
            else:
                update.apply_(out[rows], x[rows])


def _placed(model: nn.Module, updates: AdapterUpdates) -> dict[nn.Module, list[tuple[slice | None, Update]]]:
    """The updates by the parts that are there, several where those were joined."""
    found: dict[nn.Module, list[tuple[slice | None, Update]]] = {}
    for path, update in updates.parts.items():
        part, where = part_of(model, path)
        found.setdefault(part, []).append((where, update))
    return found


def _layers(paths: Mapping[str, Update]) -> frozenset[int]:
    words = [path.removeprefix("decoder.").split(".") for path in paths]
    return frozenset(int(word[1]) for word in words if word[0] == "layers")


def _runs(rows: Sequence[tuple[int, int]]) -> Runs:
    runs: Runs = []
    start = 0
    for number, same in groupby(rows, key=lambda one: one[0]):
        end = start + sum(length for _, length in same)
        if number != NO_ADAPTER:
            runs.append((number, slice(start, end)))
        start = end
    everything = len(runs) == 1 and runs[0][1] == slice(0, start)
    return [(runs[0][0], None)] if everything else runs
