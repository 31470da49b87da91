"""A layer's turn in a step, forward and backward: what is kept by then, and what stands there for a moment. No torch.

In the forward a layer's parameters are gathered while all before it have kept what they keep. In the backward they are
gathered again, the layer computes with what it kept (and has made again) and gradients on their way, and when it is
done what it kept is gone and its gradients are sent.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from intaglio.planning.activations import Activations
from intaglio.planning.gathering import END, Gathered, Turn

__all__ = ["Standing", "backwards", "forwards", "turns_of"]


@dataclass(frozen=True)
class Standing:
    """Bytes at some time.

    Attributes:
        kept: of the forward, by the part that made it.
        more: beside that, by what it is.
    """

    kept: Mapping[str, int]
    more: Mapping[str, int]

    @property
    def num_bytes(self) -> int:
        return sum(self.kept.values()) + sum(self.more.values())


def turns_of(models: list[Gathered], key: int | str) -> Turn:
    """A group's turns in models that train together."""
    found = [model.turns.get(key) or _quiet(model) for model in models]
    if len(found) == 1:
        return found[0]
    names = Turn.__dataclass_fields__
    return Turn(*(_sum([getattr(turn, name) for turn in found]) for name in names))


def _quiet(model: Gathered) -> Turn:
    return Turn(model.loss, model.loss, *[model.others] * 3)


def forwards(walked: Activations, models: list[Gathered], dequantized: int) -> Iterator[Standing]:
    """The times of a forward: as each layer's parameters come, and as it computes."""
    for turn in walked.turns:
        group = turns_of(models, _key(turn.layer))
        yield Standing(turn.before, group.comes)
        yield Standing(turn.by_kind, {**group.forward, "dequantized": 0 if turn.layer is None else dequantized})
        yield Standing(turn.by_kind, {**group.forward, "layer at work": turn.making})


def backwards(walked: Activations, models: list[Gathered], dequantized: int) -> Iterator[Standing]:
    """The times of a backward, from the end to the first layer that a gradient comes to."""
    for turn in reversed(walked.turns):
        if not turn.flows:
            continue
        group, arriving = turns_of(models, _key(turn.layer)), turn.arriving
        again, made = {"recomputed": turn.recomputed}, {"dequantized": 0 if turn.layer is None else dequantized}
        yield Standing(turn.by_kind, {"gradients in flight": arriving, **group.again})
        yield Standing(turn.by_kind, {**again, "gradients in flight": turn.flowing, **group.backward})
        yield Standing(turn.by_kind, {**again, **made, "gradients in flight": arriving, **group.backward})
        yield Standing(turn.before, {"gradients in flight": arriving, **group.sent})


def _key(layer: int | None) -> int | str:
    return END if layer is None else layer


def _sum(parts: list[dict[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for one in parts for name in one)
    return {name: sum(one.get(name, 0) for one in parts) for name in names}
