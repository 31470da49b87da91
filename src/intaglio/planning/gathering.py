"""What FSDP2 makes of shards while a step goes on: parameters gathered, gradients whole, what is sent. No torch.

A layer is a group; so is the embedding with learned positions (and the output matrix, if it is the same), and so is
what stands at the end: the last norm, the output matrix or a head. See `parallel.data`, whose settings these are:

    zero   whole from the first forward on          whole while a group computes
    1      parameters that train; and with more     its gradient, and what is sent of it
           than one micro-batch their gradients
    2      parameters that train                    the same
    3      a tied embedding; the end, from its      the group and, in the backward, the one before it, which is gathered
           forward to its backward                  ahead; its gradient, and what is sent of it

Gathered parameters and gradients are in the compute dtype; what is sent of a gradient, and what is added up over
micro-batches, is fp32.

A group comes in one long buffer, from which its parameters are copied; in the forward the buffer stays until the next
group's are copied out of theirs, so that three such things stand at once. What is sent of a gradient stays until the
next group (in the backward the one before) has its own to send. A tied matrix has two gradients, of its two uses, which
are added up when the second is there, at the end of the backward, in place unless they are DTensors, as tp has them:
that is so without any shards.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod

from intaglio.planning.adapters import in_layers
from intaglio.planning.shards import padded_elements, shards_of
from intaglio.planning.stages import own_stages
from intaglio.planning.states import Tensors
from intaglio.planning.tape import FLOAT
from intaglio.specs.quantization import QuantizationSpec

__all__ = ["END", "Gathered", "Turn", "gathered_of"]

_FIRST, END = "embeddings", "end"

Parts = dict[str, int]


@dataclass(frozen=True)
class Turn:
    """A group's turns, in bytes by what they are.

    Attributes:
        comes: in the forward, when it is gathered.
        forward: while it computes.
        again: in the backward, when it is gathered once more.
        backward: while it computes, and has the gradient of what it comes to first: its last matrix.
        sent: when it is done, and all its gradients are on their way.
    """

    comes: Parts
    forward: Parts
    again: Parts
    backward: Parts
    sent: Parts


@dataclass(frozen=True)
class Gathered:
    """Bytes, by what they are.

    Attributes:
        loss: while the loss is made.
        turns: of each layer by its number, and of the `END`; those that have none keep to `others`.
        others: a layer without shards, in the backward.
        embedding: at the backward's end, when the embedding's gradient is there.
        whole: the whole model in the compute dtype, as whoever generates reads it.
    """

    loss: Parts
    turns: Mapping[int | str, Turn]
    others: Parts
    embedding: Parts
    whole: int


@dataclass(frozen=True)
class _Group:
    """Bytes to be gathered, elements whose gradient is whole for a while, of these the last matrix's, and elements that
    are sent of it."""

    gathered: int = 0
    trained: int = 0
    last: int = 0
    sent: int = 0


_NONE = _Group()


def gathered_of(
    tensors: Tensors,
    itemsize: int,
    *,
    adapted: bool,
    accumulates: bool,
    quantization: QuantizationSpec | None = None,
) -> Gathered:
    """What is there beside the shards of one model.

    Args:
        tensors: of it.
        itemsize: bytes of one element in the compute dtype.
        adapted: whether what trains is an adapter on frozen weights.
        accumulates: whether a step has more than one micro-batch.
        quantization: of frozen weights.
    """
    groups = dict(_groups(tensors, itemsize, adapted, quantization))
    return _Walk(tensors, itemsize, groups, accumulates=accumulates and tensors.layout.zero == 1).gathered()


class _Walk:
    """Through the groups, in the order of the forward."""

    def __init__(self, tensors: Tensors, itemsize: int, groups: Mapping[str, _Group], *, accumulates: bool) -> None:
        self.zero, self.itemsize, self.accumulates = tensors.layout.zero, itemsize, accumulates
        own = own_stages(tensors.layout.pp, tensors.rank.pp)
        self.together, self.shards = accumulates and tensors.layout.pp.ranks > 1, tensors.layout.shards
        self.begins = 0 in own
        tied = not {"lm_head.weight", "score.weight"} & tensors.computed.keys()
        self.tied = tied and self.begins and tensors.layout.pp.stages - 1 in own
        self.cut, self.table = tensors.layout.tp > 1, prod(tensors.trained.get("embed_tokens.weight", (0,)))
        self.names = list(groups)
        self.groups = [groups[name] for name in self.names]
        self.first = groups.get(_FIRST, _NONE)
        self.trained = sum(group.trained for group in self.groups)
        self.until = [0, *accumulate(group.gathered for group in self.groups)]

    def gathered(self) -> Gathered:
        everything = self.until[-1]
        others = _parts(0, self._tied_gradient, 0)
        if not self.zero:
            return Gathered({}, {}, others, self._embedding(), 0)
        turns = {_key(name): self._turn(place) for place, name in enumerate(self.names) if name != _FIRST}
        stays = everything if self.zero < 3 else self._always + self._at(self._end).gathered
        loss = _parts(stays, self._accumulated, 0)
        return Gathered(loss, turns, others, self._embedding(), everything)

    @cached_property
    def _end(self) -> int:
        return self.names.index(END) if END in self.names else len(self.names)

    def _at(self, place: int) -> _Group:
        return self.groups[place] if 0 <= place < len(self.groups) else _NONE

    @property
    def _always(self) -> int:
        """Gathered from the first to the last."""
        if self.zero < 3:
            return self.until[-1]
        return self.first.gathered if self.tied else 0

    @property
    def _accumulated(self) -> int:
        return self.trained * FLOAT if self.accumulates else 0

    @property
    def _tied_gradient(self) -> int:
        return self.table * self.itemsize if self.tied else 0

    def _turn(self, place: int) -> Turn:
        own, before = self._at(place), self._at(place - 1)
        earlier = self.until[place] if self.zero < 3 else self._always
        held, waiting = self._accumulated + self._tied_gradient, self._sent(place + 1)
        return Turn(
            comes=_parts(earlier + before.gathered + 2 * own.gathered, 0, 0),
            forward=_parts(earlier + 2 * own.gathered, 0, 0),
            again=_parts(self._back(place, again=True), held, waiting),
            backward=_parts(self._back(place), held + own.last * self.itemsize, waiting),
            sent=_parts(self._back(place, done=True), held + own.trained * self.itemsize, self._leaving(place)),
        )

    def _back(self, place: int, *, again: bool = False, done: bool = False) -> int:
        """Gathered in a group's backward."""
        if self.zero < 3:
            return self._always
        own, ahead = self._at(place).gathered, self._ahead(place)
        if again:
            return self._always + own * (1 if place == self._end else 2)
        return self._always + ahead + (0 if done else own)

    def _ahead(self, place: int) -> int:
        """The group before, but the embedding, which its backward does not ask for."""
        return 0 if place <= 1 and self.names[:1] == [_FIRST] else self._at(place - 1).gathered

    def _sent(self, place: int) -> int:
        """What a group has sent."""
        return 0 if self.accumulates else self._at(place).sent * FLOAT

    def _leaving(self, place: int) -> int:
        """What it sends; where gradients have been added up, those of the groups behind it are gone."""
        own = self._at(place)
        if not self.accumulates:
            return own.sent * FLOAT
        gone = sum(group.trained for group in self.groups[place + 1 :])
        return max((own.sent - gone) * FLOAT - own.trained * self.itemsize, 0)

    def _embedding(self) -> Parts:
        """Its gradient, of a tied matrix both (and their sum); or what is sent of it."""
        if self.zero and self.together:
            return self._all_at_once()
        if not self.begins:
            return _parts(self._always, 0, 0) if self.zero else {}
        size, again = self.first.trained * self.itemsize, self._tied_gradient * (2 if self.cut else 1)
        if not self.zero:
            return _parts(0, self.table * self.itemsize + again, 0)
        there = size + again
        made = _parts(self._always, self._accumulated + there, self._sent(1))
        kept = self.first.trained * FLOAT if self.accumulates else size
        return max(made, _parts(self._always, kept, self.first.sent * FLOAT), key=lambda parts: sum(parts.values()))

    def _all_at_once(self) -> Parts:
        """A pipeline sends gradients when all its micro-batches are through, the first group's first."""
        group, shards = self._at(0), self.shards
        sent = group.sent * FLOAT + group.sent // shards * FLOAT
        return _parts(self._always - group.gathered, self.trained * FLOAT, sent)


def _parts(gathered: int, whole: int, sent: int) -> Parts:
    return {"gathered parameters": gathered, "whole gradients": whole, "sent gradients": sent}


def _groups(
    tensors: Tensors, itemsize: int, adapted: bool, quantization: QuantizationSpec | None
) -> Iterator[tuple[str, _Group]]:
    """In the order of the forward; frozen weights are gathered at zero 3 only, in the bytes that they are kept in."""
    sizes: dict[str, list[int]] = {}
    if adapted and tensors.layout.zero == 3:
        for name, shape in tensors.computed.items():
            few = quantization is not None and in_layers(name) and len(shape) > 1
            size = _alike(tensors, name, shape) * itemsize
            if few and quantization is not None:
                size = prod(shape[:-2]) * quantization.num_bytes(prod(shape[-2:]))
            sizes.setdefault(_group_of(name), [0, 0, 0, 0])[0] += size
    for name, shape in tensors.trained.items():
        group, count, sent = sizes.setdefault(_group_of(name), [0, 0, 0, 0]), prod(shape), _alike(tensors, name, shape)
        group[0] += sent * itemsize
        group[1] += count
        group[2] += count if _comes_first(name) else 0
        group[3] += sent
    return ((name, _Group(*sizes[name])) for name in _in_order(list(sizes)))


def _alike(tensors: Tensors, name: str, shape: tuple[int, ...]) -> int:
    """Elements of all pieces, each as long as the longest: 8 experts over 64 ranks are 64."""
    return padded_elements(name, shape, tensors.layout) * shards_of(name, tensors.layout)


def _in_order(names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda name: (name == END, name != _FIRST, _key(name) if name not in (_FIRST, END) else 0))


def _comes_first(name: str) -> bool:
    """Whether a backward comes to it before anything large is made inside its group."""
    return not in_layers(name) or ".down_proj" in name


def _key(name: str) -> int | str:
    return name if name in (_FIRST, END) else int(name.partition(".")[2])


def _group_of(name: str) -> str:
    head, _, rest = name.partition(".")
    if head == "layers":
        return f"layers.{rest.partition('.')[0]}"
    return _FIRST if head in ("embed_tokens", "positions") else END
