"""Bytes that one rank keeps of one model from step to step. No torch.

What is counted is what tensors hold: elements of this rank's piece (`shards`) times the size of one.

    trains, zero 0          weights in the compute dtype; masters in fp32 where that is less
    trains, zero 1 to 3     FSDP2's parameters, pieces in fp32, which the optimizer steps; they count as weights
    adapter                 the same; without shards it is fp32 too, and its own master
    frozen, zero 0 to 2     whole, in the compute dtype, the matrices of layers in 4 bits if so said
    frozen, zero 3          pieces of that; of 4 bits each tensor of a matrix (packed, scales, their scales) is cut

Gradients and moments are fp32 and as long as what trains. Fused AdamW keeps a count of steps, 4 bytes, for each tensor
that trains, also where this rank's piece is empty. What is computed with while a step goes on is `gathering`'s to say.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from intaglio.planning.adapters import in_layers
from intaglio.planning.parameters import Shape, is_matrix, parameter_shapes
from intaglio.planning.shards import Rank, chunk, computed_shape, padded_elements, piece_of, sharded_shape, shards_of
from intaglio.planning.stages import Stage, own_stages, stages_of
from intaglio.planning.tape import FLOAT
from intaglio.specs import DecoderSpec
from intaglio.specs.parallel import ParallelSpec
from intaglio.specs.quantization import QuantizationSpec

__all__ = [
    "States",
    "Tensors",
    "frozen_bytes",
    "optimizer_bytes",
    "rank_stages",
    "states_of",
    "tensors_of",
    "trains_output",
]


@dataclass(frozen=True)
class States:
    """Bytes.

    Attributes:
        weights: that are computed with, or of frozen ones what is kept.
        adapters: in fp32, their own masters.
        master_weights: in fp32.
        gradients: in fp32.
        optimizer_states: moments in fp32, and each tensor's count of steps.
        padding: what pieces of weights and gradients lack to the longest one: FSDP2 stores all alike.
    """

    weights: int = 0
    adapters: int = 0
    master_weights: int = 0
    gradients: int = 0
    optimizer_states: int = 0
    padding: int = 0

    @property
    def total(self) -> int:
        return sum(vars(self).values())


@dataclass(frozen=True)
class Tensors:
    """The parameters of one model on one rank.

    Attributes:
        layout: of the ranks.
        rank: which.
        computed: shapes that it computes with, by name.
        trained: those that train, adapters among them.
    """

    layout: ParallelSpec
    rank: Rank
    computed: Mapping[str, Shape]
    trained: Mapping[str, Shape]

    @property
    def sharded(self) -> bool:
        """Whether ranks share it out between steps."""
        return self.layout.zero > 0

    def kept(self, name: str, shape: Shape) -> int:
        """Elements of this rank's piece of what trains."""
        return prod(sharded_shape(name, shape, self.layout, self.rank))

    def padded(self, name: str, shape: Shape) -> int:
        """Elements that the piece lacks to the longest."""
        return padded_elements(name, shape, self.layout) - self.kept(name, shape)


def rank_stages(spec: DecoderSpec, layout: ParallelSpec, rank: Rank) -> tuple[Stage, ...]:
    """The stages that a rank holds."""
    cut = stages_of(spec, layout.pp.stages)
    return tuple(cut[number] for number in own_stages(layout.pp, rank.pp))


def tensors_of(
    spec: DecoderSpec,
    layout: ParallelSpec,
    rank: Rank,
    *,
    trained: Mapping[str, Shape] | None = None,
    scores: bool = False,
) -> Tensors:
    """What a rank has of a model.

    Args:
        spec: of the whole model.
        layout: of the ranks.
        rank: which.
        trained: shapes by name of an adapter's tensors; None: all weights train.
        scores: whether it has a head with one score in place of the output matrix.
    """
    stages = rank_stages(spec, layout, rank)
    every = parameter_shapes(spec)
    if scores:
        every.pop("lm_head.weight", None)
        every["score.weight"] = (1, spec.hidden_size)
    tied = spec.tie_embeddings and not scores

    def own(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        here = {n: s for n, s in shapes.items() if any(stage.holds(n, tied) for stage in stages)}
        return {name: computed_shape(name, shape, layout, rank) for name, shape in here.items()}

    computed = own(every)
    if trained is None:
        return Tensors(layout, rank, computed, computed)
    head = {"score.weight": every["score.weight"]} if scores else {}
    return Tensors(layout, rank, computed, own({**trained, **head}))


def states_of(
    tensors: Tensors,
    itemsize: int,
    *,
    optimizer: str = "adamw",
    adapted: bool = False,
    quantization: QuantizationSpec | None = None,
) -> States:
    """The bytes of a model that trains.

    Args:
        tensors: of it.
        itemsize: bytes of one element in the compute dtype.
        optimizer: see `JobSpec`.
        adapted: whether what trains is an adapter on frozen weights.
        quantization: of these.
    """
    kept = {name: tensors.kept(name, shape) for name, shape in tensors.trained.items()}
    trains, gradients = sum(kept.values()) * FLOAT, sum(kept.values()) * FLOAT
    moments = optimizer_bytes(tensors, optimizer)
    padded = sum(tensors.padded(name, shape) for name, shape in tensors.trained.items()) * 2 * FLOAT
    if adapted:
        return States(frozen_bytes(tensors, itemsize, quantization), trains, 0, gradients, moments, padded)
    if itemsize == FLOAT or tensors.sharded:
        return States(trains, 0, 0, gradients, moments, padded)
    whole = sum(map(prod, tensors.computed.values())) * itemsize
    return States(whole, 0, trains, gradients, moments, padded)


def frozen_bytes(tensors: Tensors, itemsize: int, quantization: QuantizationSpec | None = None) -> int:
    """The weights of a model that stays as it is: in the compute dtype, matrices of layers in fewer bits if so said."""
    return sum(_frozen(tensors, itemsize, quantization))


def _frozen(tensors: Tensors, itemsize: int, quantization: QuantizationSpec | None) -> Iterator[int]:
    shared = tensors.layout.zero == 3
    for name, shape in tensors.computed.items():
        if quantization and in_layers(name) and len(shape) > 1:
            parts = quantization.parts(prod(shape[-2:]))
            ranks, place = shards_of(name, tensors.layout), piece_of(name, tensors.layout, tensors.rank)
            held = sum((chunk(count, ranks, place) if shared else count) * size for count, size in parts)
            yield prod(shape[:-2]) * (held + quantization.mean_bytes)
        else:
            yield (tensors.kept(name, shape) if shared else prod(shape)) * itemsize


def trains_output(spec: DecoderSpec, trained: Mapping[str, Shape]) -> bool:
    """Whether the output matrix is among what trains."""
    heads = ("lm_head", "embed_tokens") if spec.tie_embeddings else ("lm_head",)
    return any(name.startswith(heads) for name in trained)


def optimizer_bytes(tensors: Tensors, optimizer: str) -> int:
    """AdamW: two moments and a step count a tensor; Muon: one moment. Paged ones count here as well."""
    states = 0
    for name, shape in tensors.trained.items():
        elements, muon = tensors.kept(name, shape), optimizer == "muon" and is_matrix(name, shape)
        states += elements * FLOAT if muon else (2 * elements + 1) * FLOAT
    return states
