"""Two models side by side: the parts that differ, and what the difference costs."""

from collections import Counter
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
        old, new: the values; None where there is none, and words where layers differ (`512 in 15 of 18 layers`).
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
    old, new = _values(a), _values(b)
    paths = [*old, *(path for path in new if path not in old)]
    pairs = ((path, old.get(path), new.get(path)) for path in paths)
    return [Difference(*pair) for pair in pairs if pair[1] != pair[2]]


def _values(spec: DecoderSpec) -> dict[str, Any]:
    """Every value of the model by its path; what layers hold stands once, with the number of layers that hold it."""
    data = spec.model_dump(mode="json", exclude={"layers"})
    layers = [dict(_leaves(block.model_dump(mode="json", exclude={"repeat"}), "layers")) for block in spec.blocks]
    paths = dict.fromkeys(path for layer in layers for path in layer)
    in_layers = {path: _in_words([layer.get(path) for layer in layers]) for path in paths}
    return {**dict(_leaves(data)), "layers.count": len(layers), **in_layers}


def _leaves(data: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of everything but None."""
    for key, value in data.items():
        at = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            yield from _leaves(value, at)
        elif value is not None:
            yield at, value


def _in_words(values: list[Any]) -> Any:
    """The one value that all layers have, or each value with how many have it."""
    if len(set(values)) == 1:
        return values[0]
    counts = Counter(values)
    return ", ".join(f"{'none' if v is None else v} in {n} of {len(values)} layers" for v, n in counts.items())
