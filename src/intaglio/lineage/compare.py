"""Two models side by side: the parts that differ, and what the difference costs."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from intaglio.lineage.costs import costs
from intaglio.specs import BlockSpec, DecoderSpec, EncoderDecoderSpec, ModelSpec

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
    def ratio(self) -> float | None:
        """new / old; None where old is 0."""
        return self.new / self.old if self.old else None


@dataclass(frozen=True)
class Comparison:
    """What differs between two models, and what that costs."""

    differences: list[Difference]
    changes: list[Change]


def compare(a: ModelSpec, b: ModelSpec, context: int, dtype: str) -> Comparison:
    """The differences from `a` to `b`, and their costs for one sequence of `context` tokens, its cache in `dtype`.

    Raises:
        UserError: a context that one of them cannot take, or an unknown dtype.
    """
    old, new = (asdict(costs(spec, context, dtype)) for spec in (a, b))
    return Comparison(diff(a, b), [Change(name, old[name], new[name]) for name in old])


def diff(a: ModelSpec, b: ModelSpec) -> list[Difference]:
    """The values that differ from `a` to `b`; empty when the models are equal."""
    old, new = _stacks(a), _stacks(b)
    found = list(_inside("", [_around_layers(a)], [_around_layers(b)]))
    for path in dict.fromkeys([*old, *new]):
        found += _differences(path, old.get(path, []), new.get(path, []))
    return found


def _around_layers(spec: ModelSpec) -> dict[str, Any]:
    written_out: Any = {"layers": True, "encoder": {"layers"}, "decoder": {"layers"}}
    return {**spec.model_dump(mode="json", exclude=written_out), "num_layers": spec.num_layers}


def _stacks(spec: ModelSpec) -> dict[str, list[dict[str, Any]]]:
    """By its path, each stack of layers that are written out, one entry a layer."""
    stacks: dict[str, tuple[BlockSpec, ...]] = {}
    if isinstance(spec, DecoderSpec):
        stacks = {"layers": spec.blocks}
    elif isinstance(spec, EncoderDecoderSpec):
        stacks = {"encoder.layers": spec.encoder.blocks, "decoder.layers": spec.decoder.blocks}
    return {
        path: [block.model_dump(mode="json", exclude={"repeat"}) for block in blocks] for path, blocks in stacks.items()
    }


def _differences(path: str, old: list[Any], new: list[Any]) -> Iterator[Difference]:
    """Goes into parts that are of one kind in all layers of both models, and compares what is left as a whole."""
    parts = [*old, *new]
    comparable = old and new and all(isinstance(part, dict) for part in parts)
    if comparable and len({part.get("kind") for part in parts}) == 1:
        yield from _inside(path, old, new)
    elif _summary(old) != _summary(new):
        yield Difference(path, _summary(old), _summary(new))


def _inside(path: str, old: list[Any], new: list[Any]) -> Iterator[Difference]:
    for key in dict.fromkeys(key for part in (*old, *new) for key in part):
        inside = f"{path}.{key}" if path else key
        yield from _differences(inside, [part.get(key) for part in old], [part.get(key) for part in new])


def _summary(values: list[Any]) -> Any:
    """The one value that all layers have, or each value with how many layers have it; None where there are none."""
    kinds = [value for i, value in enumerate(values) if value not in values[:i]]
    if len(kinds) <= 1:
        return kinds[0] if kinds else None
    return [{"value": kind, "layers": values.count(kind)} for kind in kinds]
