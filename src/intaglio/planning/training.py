"""The memory of a training run on one device, by arithmetic.

Bytes that stay: weights in the compute dtype, fp32 masters where that is less, fp32 gradients, the optimizer's
moments. With an adapter: weights without any of these, in fewer bits if so said, and adapters in fp32 with theirs.
Bytes that come and go: what the forward keeps for the backward, the loss, and the larger of what it needs for a moment
and what a checkpointed layer makes again. What no arithmetic knows (the allocator's rounding, a device's context, the
libraries) is not in here.

Legend: T tokens, E features of the model, V vocabulary, C tokens of a chunk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Literal

from intaglio.errors import UserError, nearest
from intaglio.planning.activations import INT64, activations
from intaglio.planning.adapters import frozen_bytes, largest_matrix, ranks_of, trained_shapes
from intaglio.planning.parameters import Shape, is_matrix, parameter_shapes
from intaglio.planning.tape import FLOAT
from intaglio.specs import DecoderSpec, dtype_bytes
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.quantization import QuantizationSpec

__all__ = ["LOSS_BLOCK", "MemoryPlan", "OptimizerName", "plan_training"]

LOSS_BLOCK = 1 << 19
"""Logits whose softmax the chunked loss makes at a time: two megabytes of fp32, which a cache holds."""

OptimizerName = Literal["adamw", "muon"]
COMPUTE_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes.

    Attributes:
        weights: in the compute dtype, or in the bits that frozen ones are kept in.
        adapters: in fp32, their own masters.
        master_weights: in fp32; 0 where the weights are fp32 themselves.
        gradients: in fp32, from the first step to the last.
        optimizer_states: moments in fp32, and each tensor's count of steps.
        activations: kept from the forward to the backward, by the part that made them.
        recomputed: the most that one checkpointed layer makes again, and the gradient of its result.
        dequantized: the largest matrix of a few bits in the dtype it is used in, and how it comes there.
        loss: kept by the loss from its forward to its backward.
        logits: what the loss needs for a moment beside that.
    """

    weights: int
    adapters: int
    master_weights: int
    gradients: int
    optimizer_states: int
    activations: dict[str, int]
    recomputed: int
    dequantized: int
    loss: int
    logits: int

    @property
    def resident(self) -> int:
        """What stays from step to step."""
        return self.weights + self.adapters + self.master_weights + self.gradients + self.optimizer_states

    @property
    def peak(self) -> int:
        """The most at one time: all activations, and then the loss or, once that is gone, a layer made again.

        Exact to a percent where nothing is checkpointed; the gradients inside a layer made again are not in it.
        """
        passing = max(self.loss + self.logits, self.recomputed + self.dequantized)
        return self.resident + sum(self.activations.values()) + passing

    def as_dict(self) -> dict[str, Any]:
        """Plain data: `peak_bytes`, `resident_bytes` and `components`."""
        return {"peak_bytes": self.peak, "resident_bytes": self.resident, "components": asdict(self)}

    def rows(self) -> list[tuple[str, int]]:
        """What a table for people shows: a label and bytes each, what is 0 left out, the peak last."""
        flat = {name: value for name, value in asdict(self).items() if name != "activations"}
        kinds = {f"activations: {kind}": value for kind, value in self.activations.items()}
        rows = {**flat, **kinds, "peak": self.peak}
        return [(label.replace("_", " "), value) for label, value in rows.items() if value]


def plan_training(
    spec: DecoderSpec,
    tokens: int,
    *,
    dtype: str = "bfloat16",
    optimizer: OptimizerName = "adamw",
    chunk: int | None = 1024,
    checkpoint_every: int | Literal["selective"] = 0,
    documents: Sequence[int] | None = None,
    adapter: LoRASpec | None = None,
    ranks: Mapping[str, int] | None = None,
    quantization: QuantizationSpec | None = None,
) -> MemoryPlan:
    """What it takes to train a decoder: every parameter, or an adapter beside them.

    Args:
        spec: of the model.
        tokens: of a micro-batch: one packed row, every token a target.
        dtype: what the model computes in; masters, gradients and moments are fp32.
        optimizer: adamw for everything; or muon, one moment, for the matrices in layers and adamw for the rest.
        chunk: tokens whose logits exist at once; None makes them all (the plain loss).
        checkpoint_every: of each that many layers the first is computed again in the backward; 0 for none; selective
            computes all but products and fused attention again.
        documents: lengths of the documents in the row; None is one as long as it. Windows, soft-capped scores and
            latent attention cost less in short ones, and so does attention in bf16 (`parts.short_attention`), whose
            scores of one document stand for a moment in the backward and are not counted.
        adapter: what trains in place of the weights. Its activations are LoRA's, without dropout and DoRA.
        ranks: where it is, by the path of each matrix; None goes by the names that the parts have here.
        quantization: of the weights, which are frozen then.

    Raises:
        UserError: a dtype that nothing is trained in; documents that are not as long as the row together.
    """
    if dtype not in COMPUTE_DTYPES:
        raise UserError(f"cannot train in {dtype!r}", mend=nearest(dtype, COMPUTE_DTYPES))
    if documents is not None and sum(documents) != tokens:
        raise UserError(f"documents of {sum(documents)} tokens in a row of {tokens}", mend="give all their lengths")
    itemsize, count = dtype_bytes(dtype), spec.num_parameters()
    if adapter is not None and ranks is None:
        ranks = ranks_of(spec, adapter)
    trained = parameter_shapes(spec) if adapter is None else trained_shapes(spec, adapter, ranks or {})
    elements = sum(map(prod, trained.values()))
    kept = activations(spec, tokens, itemsize, documents or (tokens,), checkpoint_every, ranks)
    head = any(
        name.startswith("lm_head" if not spec.tie_embeddings else ("lm_head", "embed_tokens")) for name in trained
    )
    loss, logits = _plain_loss(spec, tokens, itemsize) if chunk is None else _loss(spec, tokens, itemsize, chunk, head)
    return MemoryPlan(
        weights=count * itemsize if adapter is None else frozen_bytes(spec, itemsize, quantization),
        adapters=0 if adapter is None else elements * FLOAT,
        master_weights=0 if itemsize == FLOAT or adapter else count * FLOAT,
        gradients=elements * FLOAT,
        optimizer_states=_optimizer_states(trained, optimizer),
        activations=kept.by_kind,
        recomputed=kept.recomputed,
        dequantized=largest_matrix(spec) * (FLOAT + itemsize) if quantization else 0,
        loss=loss,
        logits=logits,
    )


def _optimizer_states(trained: Mapping[str, Shape], optimizer: OptimizerName) -> int:
    """AdamW: two moments and a step count a tensor; Muon: one moment."""
    states = 0
    for name, shape in trained.items():
        muon = optimizer == "muon" and is_matrix(name, shape)
        states += prod(shape) * FLOAT if muon else (2 * prod(shape) + 1) * FLOAT
    return states


def _loss(spec: DecoderSpec, tokens: int, itemsize: int, chunk: int, trained: bool) -> tuple[int, int]:
    """Chunked: the gradients of the hidden states (T, E) and, where it is trained, of the output matrix (V, E; fp32),
    and where targets are.

    For a moment: in the forward the hidden states twice and a chunk's logits with a block of them in fp32, or their
    gradient and the chunk's part of the matrix's; in the backward both gradients scaled, that of the output matrix in
    the compute dtype as well.
    """
    rows, matrix = tokens * spec.hidden_size, spec.vocab_size * spec.hidden_size if trained else 0
    count = min(chunk, tokens)
    logits = count * spec.vocab_size
    block = min(max(LOSS_BLOCK // spec.vocab_size, 1), count) * spec.vocab_size
    softmax = logits * itemsize + block * _block_bytes(spec, itemsize)
    forward = 2 * rows * itemsize + max(softmax, (logits + matrix) * itemsize)
    rounded = 0 if itemsize == FLOAT else matrix * itemsize
    backward = rows * itemsize + matrix * FLOAT + rounded
    return rows * itemsize + matrix * FLOAT + tokens * INT64, max(forward, backward)


def _block_bytes(spec: DecoderSpec, itemsize: int) -> int:
    """Of one logit of a block at the worst moment, beside what the product gave: fp32; with a cap, its slope and their
    product too."""
    if spec.logit_softcap:
        return 3 * FLOAT
    return 0 if itemsize == FLOAT else FLOAT


def _plain_loss(spec: DecoderSpec, tokens: int, itemsize: int) -> tuple[int, int]:
    """Whole: hidden states, log-probabilities (T, V; fp32), targets and their number; for a moment two gradients
    as large as the log-probabilities."""
    whole = tokens * spec.vocab_size * FLOAT
    return tokens * spec.hidden_size * itemsize + whole + tokens * INT64 + FLOAT, 2 * whole
