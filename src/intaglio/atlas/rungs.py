"""The rungs from GPT-1 to LLaMA, as `ladder.yaml` has them: each is another one with a few keys changed."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from intaglio.errors import UserError, nearest
from intaglio.specs import DecoderSpec, load_yaml, validate_model
from intaglio.training.changes import read_change

__all__ = ["Rung", "RungClaim", "Shape", "architecture", "chosen", "claims", "read_rungs", "spec_of", "warmup_of"]

_FILE: Final = Path(__file__).with_name("ladder.yaml")
_ROOTS: Final = ("model", "every_second", "schedule")
_STEP: Final = 4
"""Feed-forwards are fitted in steps of so many features."""


@dataclass(frozen=True)
class Rung:
    """One model of the ladder, and how it is trained.

    Attributes:
        name, title: for the command line, and for people.
        below: the rung it is made from; None for the first.
        changed: dotted keys and their values, see `ladder.yaml`.
        fit: the feed-forward takes up what the change saved, or gives what it costs.
        shape: `plain`, `deep`, or "" for that of the rung below.
    """

    name: str
    title: str
    below: str | None
    changed: Mapping[str, Any]
    fit: bool = False
    shape: str = ""


@dataclass(frozen=True)
class RungClaim:
    """One rung is claimed to be ahead of another, or to lose less than `margin` of its loss."""

    ahead: str
    of: str
    margin: float = 0.0
    title: str = ""


@dataclass(frozen=True)
class Shape:
    """How large a model is.

    Attributes:
        layers, width, heads: of the decoder; the feed-forward of the first rung is four times as wide.
    """

    layers: int
    width: int
    heads: int


def read_rungs(swaps: Iterable[str] = ()) -> dict[str, Rung]:
    """The rungs by name, in order.

    Args:
        swaps: `KEY=VALUE` each: every rung that changes the key changes it to this value instead.

    Raises:
        UserError: no rung changes such a key.
    """
    rungs = {name: _rung(name, fields) for name, fields in _document()["rungs"].items()}
    for swap in swaps:
        key, value = read_change(swap)
        known = {one for rung in rungs.values() for one in _keys(rung)}
        if key not in known:
            raise UserError(f"no rung changes {key!r}", where="--swap", mend=nearest(key, known))
        rungs = {name: _swapped(rung, key, value) if key in _keys(rung) else rung for name, rung in rungs.items()}
    return rungs


def chosen(rungs: Mapping[str, Rung], only: Sequence[str]) -> list[str]:
    """The names of some rungs, and of those that they are claimed to be ahead of; of all where none is named.

    Raises:
        UserError: no rung has such a name.
    """
    for name in only:
        if name not in rungs:
            raise UserError(f"unknown rung {name!r}", where="--only", mend=nearest(name, rungs))
    wanted = {*only, *(one.of for one in claims() if one.ahead in only)} if only else set(rungs)
    return [name for name in rungs if name in wanted]


@cache
def claims() -> tuple[RungClaim, ...]:
    """What is claimed of the rungs."""
    return tuple(RungClaim(**fields) for fields in _document()["claims"])


def architecture(name: str, rungs: Mapping[str, Rung], shapes: Mapping[str, Shape], context: int) -> dict[str, Any]:
    """The architecture of a recipe, all but `vocab_size`.

    Args:
        name: of a rung.
        rungs: all of them.
        shapes: what `plain` and `deep` mean here.
        context: tokens of a sequence.
    """
    return _made(name, rungs, shapes[_shape_of(name, rungs)], context)


def warmup_of(name: str, rungs: Mapping[str, Rung], otherwise: float) -> float:
    """The share of the steps that warms up."""
    schedule = _fields(name, rungs)["schedule"]
    return float(schedule.get("warmup", otherwise))


def spec_of(shape: dict[str, Any], vocab_size: int) -> DecoderSpec:
    """The spec of an architecture."""
    spec = validate_model({"vocab_size": vocab_size, **shape}, "ladder")
    assert isinstance(spec, DecoderSpec)
    return spec


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = load_yaml(_FILE)
    return document


def _rung(name: str, fields: dict[str, Any]) -> Rung:
    return Rung(
        name,
        fields["title"],
        fields.get("from"),
        fields.get("set", {}),
        fields.get("fit", False),
        fields.get("shape", "" if "from" in fields else "plain"),
    )


def _keys(rung: Rung) -> set[str]:
    """The keys that a rung changes, those inside a value too; the first rung changes none."""
    return set(_inside(rung.changed)) if rung.below else set()


def _inside(tree: Mapping[str, Any]) -> Iterable[str]:
    for key, value in tree.items():
        yield key
        if isinstance(value, dict):
            yield from (f"{key}.{inner}" for inner in _inside(value))


def _swapped(rung: Rung, key: str, value: Any) -> Rung:
    changed = deepcopy(dict(rung.changed))
    if key in changed:
        changed[key] = value
    else:
        outer = next(one for one in changed if key.startswith(f"{one}."))
        _put(changed[outer], key.removeprefix(f"{outer}."), value)
    return replace(rung, title=f"{rung.title} with {key}={value}", changed=changed)


def _shape_of(name: str, rungs: Mapping[str, Rung]) -> str:
    rung = rungs[name]
    return rung.shape or _shape_of(rung.below or "", rungs)


def _fields(name: str, rungs: Mapping[str, Rung]) -> dict[str, Any]:
    """What a rung and all those below it set, as a tree."""
    rung = rungs[name]
    fields: dict[str, Any] = _fields(rung.below, rungs) if rung.below else {root: {} for root in (*_ROOTS, "layer")}
    for key, value in rung.changed.items():
        root, _, rest = key.partition(".")
        path = (root, rest) if root in _ROOTS else ("layer", key)
        _put(fields[path[0]], path[1], deepcopy(value))
    return fields


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[last] = value


def _made(name: str, rungs: Mapping[str, Rung], shape: Shape, context: int) -> dict[str, Any]:
    """A rung in a shape; fitted to the rung below it in the same shape."""
    fields, width = _fields(name, rungs), _width_of(name, rungs, shape, context)
    layer = {**fields["layer"], "attention": {"num_heads": shape.heads, **fields["layer"].get("attention", {})}}
    layer["feed_forward"] = _sized(layer["feed_forward"], width)
    second = deepcopy(layer)
    for part, changed in fields["every_second"].items():
        second[part] |= changed
    pair = {"repeat": shape.layers // 2, "pattern": [layer, second]}
    return {
        "hidden_size": shape.width,
        "max_position_embeddings": context,
        **fields["model"],
        "layers": [pair if fields["every_second"] else {"repeat": shape.layers, **layer}],
    }


def _width_of(name: str, rungs: Mapping[str, Rung], shape: Shape, context: int) -> int:
    """Features inside the feed-forward (of each expert, where there are some)."""
    rung = rungs[name]
    if rung.below is None:
        return 4 * shape.width
    if not rung.fit:
        return _width_of(rung.below, rungs, shape, context)
    wanted = _active(_made(rung.below, rungs, shape, context))
    made = _made(name, {**rungs, name: replace(rung, fit=False)}, shape, context)
    fewest, more = (_active(_resized(made, width)) for width in (_STEP, 2 * _STEP))  # linear in the width
    return _STEP * (1 + round((wanted - fewest) / (more - fewest)))


def _resized(made: dict[str, Any], width: int) -> dict[str, Any]:
    (layer,) = made["layers"]
    return {**made, "layers": [{**layer, "feed_forward": _sized(layer["feed_forward"], width)}]}


def _sized(feed_forward: dict[str, Any], width: int) -> dict[str, Any]:
    """A feed-forward, or each of its experts, with so many features inside."""
    if "expert" in feed_forward:
        return {**feed_forward, "expert": _sized(feed_forward["expert"], width)}
    return {**feed_forward, "intermediate_size": width}


def _active(shape: dict[str, Any]) -> int:
    return spec_of(shape, 256).num_active_parameters()
