"""The memory of a training run on one device, by arithmetic.

Bytes that stay: weights in the compute dtype, fp32 masters where that is less, fp32 gradients, the optimizer's
moments. With an adapter: weights without any of these, in fewer bits if so said, and adapters in fp32 with theirs.
Bytes that come and go: what the forward keeps for the backward, with the loss and what that needs for a moment; or the
layers' backward, with what a checkpointed one makes again and gradients on their way. What no arithmetic knows (the
allocator's rounding, a device's context, the libraries) is not in here.

Of one rank among several, and of jobs with more than one model, see `rank_plan`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from intaglio.errors import UserError, nearest
from intaglio.planning.activations import activations
from intaglio.planning.adapters import largest_matrix, ranks_of, trained_shapes
from intaglio.planning.gathering import gathered_of
from intaglio.planning.losses import LOSS_BLOCK, language_model_loss
from intaglio.planning.shards import Rank
from intaglio.planning.states import states_of, tensors_of, trains_output
from intaglio.planning.tape import FLOAT, Shared
from intaglio.planning.turns import backwards, forwards
from intaglio.specs import DecoderSpec, dtype_bytes
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.parallel import ParallelSpec
from intaglio.specs.quantization import QuantizationSpec

__all__ = ["LOSS_BLOCK", "MemoryPlan", "OptimizerName", "plan_training"]

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
        backward: at the worst moment of the layers' backward: activations that are still kept, what a checkpointed
            layer makes again, and gradients on their way.
        dequantized: beside that the largest matrix of a few bits in the dtype it is used in, and how it comes there.
        passing: at the worst of other moments: a layer's forward, or when the embedding has its gradient.
        loss: kept by the loss from its forward to its backward.
        logits: what the loss needs for a moment beside that.
    """

    weights: int
    adapters: int
    master_weights: int
    gradients: int
    optimizer_states: int
    activations: dict[str, int]
    backward: int
    dequantized: int
    passing: int
    loss: int
    logits: int

    @property
    def resident(self) -> int:
        """What stays from step to step."""
        return self.weights + self.adapters + self.master_weights + self.gradients + self.optimizer_states

    @property
    def peak(self) -> int:
        """The most at one time: all activations and the loss; once that is gone, the layers' backward; or another."""
        loss = sum(self.activations.values()) + self.loss + self.logits
        return self.resident + max(loss, self.backward + self.dequantized, self.passing)


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
    itemsize = dtype_bytes(dtype)
    if adapter is not None and ranks is None:
        ranks = ranks_of(spec, adapter)
    trained = None if adapter is None else trained_shapes(spec, adapter, ranks or {})
    tensors = tensors_of(spec, ParallelSpec(), Rank(), trained=trained)
    states = states_of(tensors, itemsize, optimizer=optimizer, adapted=adapter is not None, quantization=quantization)
    quantized = quantization is not None
    shared = Shared(quantized=quantized, twice=itemsize == FLOAT or quantized)
    kept = activations(spec, tokens, itemsize, documents or (tokens,), checkpoint_every, ranks, shared=shared)
    loss = language_model_loss(spec, tokens, itemsize, chunk, trained=trains_output(spec, tensors.trained))
    gathered = gathered_of(tensors, itemsize, adapted=adapter is not None, accumulates=False)
    largest = largest_matrix(spec) * (FLOAT + itemsize) if quantized else 0
    back = max(backwards(kept, [gathered], largest), key=lambda standing: standing.num_bytes)
    made = back.more.get("dequantized", 0)
    return MemoryPlan(
        weights=states.weights,
        adapters=states.adapters,
        master_weights=states.master_weights,
        gradients=states.gradients,
        optimizer_states=states.optimizer_states,
        activations=kept.by_kind,
        backward=back.num_bytes - made,
        dequantized=made,
        passing=max(
            sum(gathered.embedding.values()),
            max(standing.num_bytes for standing in forwards(kept, [gathered], largest)),
        ),
        loss=loss.kept,
        logits=loss.passing,
    )
