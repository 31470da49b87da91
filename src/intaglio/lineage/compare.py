"""Two models side by side: the parts that differ, and what the difference costs."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from intaglio.lineage.costs import costs
from intaglio.specs import DecoderSpec

__all__ = ["Change", "Comparison", "Difference", "compare", "diff"]


@dataclass(frozen=True)
class Difference:
    """One value that differs.

    Attributes:
        path: where it stands, such as `layers.attention.num_kv_heads`.
        old, new: the values, whole parts where one side has none or one of another kind; None where there is none.
            Where layers differ: a list of `{"value": ..., "layers": how many}`.
    """

    path: str
    old: Any
    new: Any


@dataclass(frozen=True)
class Change:
    """What the differences do to one cost; named as in `Costs`."""

    name: str
    old: int
    new: int

    @property
    def ratio(self) -> float:
        """new / old"""
        return self.new / self.old


@dataclass(frozen=True)
class Comparison:
    """What differs between two models, and what that costs."""

    differences: list[Difference]
    changes: list[Change]


def compare(a: DecoderSpec, b: DecoderSpec, context: int, dtype: str) -> Comparison:
    """The differences from `a` to `b`, and their costs for one sequence of `context` tokens, its cache in `dtype`.

    Raises:
        UserError: a context that one of them cannot take, or an unknown dtype.
    """
    old, new = (asdict(costs(spec, context, dtype)) for spec in (a, b))
    return Comparison(diff(a, b), [Change(name, old[name], new[name]) for name in old])


def diff(a: DecoderSpec, b: DecoderSpec) -> list[Difference]:
    """The values that differ from `a` to `b`; empty when the models are equal."""
    around = _differences("", [_around_layers(a)], [_around_layers(b)])
    return [*around, *_differences("layers", _layers(a), _layers(b))]


def _around_layers(spec: DecoderSpec) -> dict[str, Any]:
    return {**spec.model_dump(mode="json", exclude={"layers"}), "num_layers": spec.num_layers}


def _layers(spec: DecoderSpec) -> list[dict[str, Any]]:
    return [block.model_dump(mode="json", exclude={"repeat"}) for block in spec.blocks]


def _differences(path: str, old: list[Any], new: list[Any]) -> Iterator[Difference]:
    """Goes into parts that are of one kind in all layers of both models, and compares what is left as a whole."""
    parts = [*old, *new]
    if all(isinstance(part, dict) for part in parts) and len({part.get("kind") for part in parts}) == 1:
        for key in dict.fromkeys(key for part in parts for key in part):
            inside = f"{path}.{key}" if path else key
            yield from _differences(inside, [part.get(key) for part in old], [part.get(key) for part in new])
    elif _summary(old) != _summary(new):
        yield Difference(path, _summary(old), _summary(new))


def _summary(values: list[Any]) -> Any:
    """The one value that all layers have, or each value with how many layers have it."""
    kinds = [value for i, value in enumerate(values) if value not in values[:i]]
    if len(kinds) == 1:
        return kinds[0]
    return [{"value": kind, "layers": values.count(kind)} for kind in kinds]
