"""What a forward keeps and a step allocates, measured: what the plans' arithmetic is held against."""

import gc
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

from intaglio.models.decoder import Decoder
from intaglio.parts.context import Causal, Packed
from intaglio.training.objectives.chunked_loss import chunked_cross_entropy
from intaglio.training.stepping.master import MasterWeights
from intaglio.training.stepping.optimizer import OptimizerSpec, build_optimizers
from intaglio.training.stepping.tricks import recompute_activations

__all__ = ["CHUNK", "DOCUMENTS", "TOKENS", "Every", "Run", "allocated", "kept", "own_storages", "saved"]

TOKENS, CHUNK = 256, 64
DOCUMENTS = (32,) * 8

Every = int | Literal["selective"]


def kept(model: Decoder, context: Causal, positions: torch.Tensor) -> int:
    """Bytes of the storages that autograd keeps of a forward to the hidden states, parameters left out."""
    ids = torch.randint(model.spec.vocab_size, positions.shape)
    return saved(lambda: model.hidden_states(ids, positions, context), model)


def saved(work: Callable[[], Tensor], model: nn.Module) -> int:
    """Bytes of the storages that autograd keeps of some work, each once, the model's own parameters left out."""
    own = own_storages(model)
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        assert not isinstance(tensor, DTensor), "parts compute with plain pieces"
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        out = work()
    assert out.requires_grad
    return sum(storage.nbytes() for storage in storages.values())


def own_storages(model: nn.Module) -> set[int]:
    """Where a model's parameters are, or this rank's pieces of them."""
    pieces = (p.to_local() if isinstance(p, DTensor) else p for p in model.parameters())
    return {piece.untyped_storage().data_ptr() for piece in pieces}


class Run:
    """One micro-batch a step, as the loop does it."""

    def __init__(self, model: Decoder, dtype: torch.dtype, optimizer: Literal["adamw", "muon"], every: Every) -> None:
        self.model = model
        self.masters = MasterWeights(self.model, dtype)
        self.optimizers = build_optimizers(OptimizerSpec(kind=optimizer), self.masters.masters)
        if every:
            recompute_activations(self.model, every)
        self.ids = torch.randint(model.spec.vocab_size, (1, TOKENS))
        self.step()  # makes what stays

    def loss(self) -> Tensor:
        """The chunked loss; nothing of the forward outlives it but what autograd keeps."""
        positions = torch.cat([torch.arange(length) for length in DOCUMENTS])[None]
        hidden = self.model.hidden_states(self.ids, positions, Packed(DOCUMENTS))[0]
        every = torch.arange(TOKENS)
        cap, weight = self.model.spec.logit_softcap, self.model.lm_head.weight
        return chunked_cross_entropy(hidden[every], weight, self.ids[0], chunk=CHUNK, softcap=cap)

    def step(self) -> None:
        self.masters.zero_grad()
        self.loss().backward()
        for optimizer in self.optimizers:
            optimizer.step()
        self.masters.publish()

    def resident(self) -> int:
        """Bytes of weights, masters, gradients and moments."""
        masters = self.masters.parameters()
        states = [state for optimizer in self.optimizers for state in optimizer.state.values()]
        tensors = {id(p): p for p in [*self.model.parameters(), *masters]}
        grads = sum(p.grad.nbytes for p in masters if p.grad is not None)
        moments = sum(value.nbytes for state in states for value in state.values() if isinstance(value, Tensor))
        return sum(p.nbytes for p in tensors.values()) + grads + moments


def allocated(work: Callable[[], object]) -> int:
    """The most bytes that stand allocated while `work` runs, beyond those before."""
    gc.collect()  # or what an earlier test has left would be given back meanwhile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    assert seen.profiler is not None
    events = seen.profiler.kineto_results.events()
    total = peak = 0
    for event in events:
        if event.name() == "[memory]":
            total += event.nbytes()
            peak = max(peak, total)
    return peak
