"""Data parallelism: every rank learns from other batches, and gradients are summed. ZeRO's stages (Rajbhandari et al.
2020) are settings of PyTorch's FSDP2.

    zero   shared out                   while a step goes on
    0      nothing                      gradients are summed once, after the last micro-batch (DDP)
    1      optimizer states             parameters whole from the first forward on; gradients whole until the last
    2      and gradients                parameters whole from the first forward on; gradients reduced each micro-batch
    3      and parameters               both only while their layer computes

A layer is a group that is gathered and reduced in one collective; so is the embedding (with learned positions), and so
is what stands at the end: the last norm, the output matrix, a head that scores. The group at the end stays gathered
from its forward to its backward, which follow each other; the embedding is not gathered for its backward, which does
not ask for it, but if it is the output matrix too, it stays from the first to the last.

Losses divide by the targets of all ranks, so gradients are summed, never averaged.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier
from intaglio.models.value import ActorCritic
from intaglio.parallel import context, tensor
from intaglio.parallel import experts as spreading
from intaglio.parallel.mesh import BATCHES, SHARDS, part
from intaglio.parallel.whole import remember
from intaglio.parts.nf4 import NF4Linear
from intaglio.specs.parallel import ParallelSpec

__all__ = ["MicroBatches", "lay_out", "shard", "sum_gradients"]

_BUCKET: Final = 1 << 25  # bytes that are summed in one collective


def lay_out(
    model: nn.Module, mesh: DeviceMesh, spec: ParallelSpec, dtype: torch.dtype, experts: DeviceMesh | None = None
) -> None:
    """Lays a model out in all dimensions but the pipeline's, in place: what tp, ep and cp cut, then the shards.

    Args:
        model, mesh, spec, dtype: see `shard`.
        experts: of `expert_mesh`, where ep > 1.

    Raises:
        UserError: the model cannot be cut so; see `shard`, `tensor`, `experts` and `context`.
    """
    if spec.tp * spec.ep * spec.cp > 1:
        decoders = [decoder for decoder, _ in _decoders(model)]
        _prepare(model, spec)
        for decoder in decoders:
            tensor.parallelize(decoder, mesh, spec)
            if experts is not None:
                spreading.parallelize(decoder, experts, spec)
            context.parallelize(decoder, mesh, spec)
    shard(model, mesh, spec, dtype, experts)


def shard(
    model: nn.Module, mesh: DeviceMesh, spec: ParallelSpec, dtype: torch.dtype, experts: DeviceMesh | None = None
) -> None:
    """Shares a model out over the ranks of data parallelism, in place; nothing to do at zero 0.

    Parameters become DTensors and keep their names: an optimizer over them steps this rank's shards. What is frozen is
    shared out at zero 3 only, and in the dtype it has.

    Args:
        model: a decoder, or one under heads; after `tensor.parallelize`, on the mesh's device, all ranks with the same
            weights. What trains is fp32 (or fp64).
        mesh: see `build_mesh`.
        spec: the layout.
        dtype: what is computed in; gradients are reduced in the dtype of the parameters.
        experts: of `expert_mesh`, where ep > 1: those that are spread have other ranks to share them.

    Raises:
        UserError: a model of another kind, which only zero 0 takes.
    """
    if not spec.zero:
        return
    decoders = list(_decoders(model))
    _prepare(model, spec)
    settings = _settings(model, mesh, spec, dtype)
    for decoder, heads in decoders:
        if experts is not None:
            for spread in spreading.spread_experts(decoder):
                fully_shard(spread, reshard_after_forward=spec.zero == 3, **{**settings, "mesh": _copies(experts)})
        _shard_decoder(decoder, heads, settings, gathered_again=spec.zero == 3)
    for module in _fsdp(model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo knows no other
        module.set_reduce_scatter_unused_params(True)


class MicroBatches:
    """Tells a model which micro-batch of a step comes, for what happens once a step and not at each backward.

    Args:
        model: see `shard`; one that is not shared out need not be told anything.
        spec: the layout.
    """

    def __init__(self, model: nn.Module, spec: ParallelSpec) -> None:
        self._modules, self._zero = list(_fsdp(model)), spec.zero

    def begin(self, last: bool) -> None:
        """Before the forward of a micro-batch; `last` of its step."""
        for module in self._modules:
            if self._zero == 1:
                module.set_requires_gradient_sync(last, recurse=False)
            if self._zero in (1, 2):
                module.set_reshard_after_backward(last, recurse=False)


@torch.no_grad()
def sum_gradients(parameters: Iterable[Tensor], mesh: DeviceMesh, experts: DeviceMesh | None = None) -> None:
    """Sums gradients over the ranks that read other data or other parts of it, at zero 0; in place.

    A parameter that no token of this rank reached (an expert, say) takes part with zeros.

    Args:
        parameters: that train.
        mesh: see `build_mesh`.
        experts: of `expert_mesh`, where ep > 1.
    """
    every = list(parameters)
    spread = [parameter for parameter in every if spreading.of_experts(parameter)]
    alike = [parameter for parameter in every if not spreading.of_experts(parameter)]
    _sum_over(part(mesh, BATCHES).get_group(), alike)
    if experts is not None:
        _sum_over(_copies(experts).get_group(), spread)


def _sum_over(group: dist.ProcessGroup, parameters: Sequence[Tensor]) -> None:
    for bucket in _buckets([_gradient_of(parameter) for parameter in parameters]):
        flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
        dist.all_reduce(flat, group=group)
        for gradient, summed in zip(bucket, flat.split([gradient.numel() for gradient in bucket]), strict=True):
            gradient.copy_(summed.view_as(gradient))


def _gradient_of(parameter: Tensor) -> Tensor:
    """This rank's piece of a gradient, made where there is none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one dtype that are sent together."""
    bucket: list[Tensor] = []
    for one in tensors:
        if bucket and (bucket[0].dtype != one.dtype or sum(other.nbytes for other in bucket) + one.nbytes > _BUCKET):
            yield bucket
            bucket = []
        bucket.append(one)
    if bucket:
        yield bucket


def _copies(experts: DeviceMesh) -> DeviceMesh:
    """The ranks that have the same experts and other tokens."""
    return experts[spreading.COPIES, "cp"]._flatten("copies_cp")


def _fsdp(model: nn.Module) -> Iterator[FSDPModule]:
    return (module for module in model.modules() if isinstance(module, FSDPModule))


def _settings(model: nn.Module, mesh: DeviceMesh, spec: ParallelSpec, dtype: torch.dtype) -> dict[str, Any]:
    """What all groups have in common."""
    training = {p.dtype for p in model.parameters() if p.requires_grad}
    lower = dtype if any(torch.promote_types(one, dtype) != dtype for one in training) else None
    frozen = () if spec.zero == 3 else (p for p in model.parameters() if not p.requires_grad)
    offload = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if spec.offload else OffloadPolicy()
    return {
        "mesh": part(mesh, "replicate", SHARDS) if spec.hsdp > 1 else part(mesh, SHARDS),
        "mp_policy": MixedPrecisionPolicy(lower, None if lower is None else torch.float32, cast_forward_inputs=False),
        "offload_policy": offload,
        "ignored_params": set(frozen),
    }


def _decoders(model: nn.Module) -> Iterator[tuple[Decoder, list[nn.Module]]]:
    """Each decoder in a model, and the heads that read what comes out of it."""
    match model:
        case Decoder():
            yield model, []
        case SequenceClassifier():
            yield model.decoder, [model.score]
        case ActorCritic():
            yield model.decoder, [] if model.value is None else [model.value]
            if model.critic is not None:
                yield from _decoders(model.critic)
        case _:
            what = f"only decoders are shared out, and this is a {type(model).__name__}"
            raise UserError(what, where="parallel", mend="take zero 0, and dp alone")


def _shard_decoder(
    decoder: Decoder, heads: Sequence[nn.Module], settings: dict[str, Any], *, gathered_again: bool
) -> None:
    """Groups, and the decoder around them: it has no parameters of its own, but knows in which order groups follow."""
    first: list[Any] = [decoder.embed_tokens] + ([decoder.positions] if decoder.positions is not None else [])
    tied = decoder.spec.tie_embeddings and hasattr(decoder.lm_head, "weight")
    with _hung(decoder.embed_tokens, [decoder.lm_head] if tied else []):
        fully_shard(
            first if len(first) > 1 else first[0], reshard_after_forward=gathered_again and not tied, **settings
        )
    for layer in decoder.layers:
        fully_shard(layer, reshard_after_forward=gathered_again, **settings)
    with _hung(decoder.norm, [*heads, *([] if tied else [decoder.lm_head])]):
        fully_shard(decoder.norm, reshard_after_forward=False, **settings)
    fully_shard(decoder, reshard_after_forward=False, **{**settings, "ignored_params": set(decoder.parameters())})
    register_fsdp_forward_method(decoder, "hidden_states")
    if gathered_again and not tied:
        decoder.embed_tokens.set_unshard_in_backward(False)  # type: ignore[operator]


@contextmanager
def _hung(below: nn.Module, modules: Sequence[nn.Module]) -> Iterator[None]:
    """Modules as children of another while a group is made, which has one module whose forward it goes by.

    Losses take the output matrix in chunks and never call it; the norm before it is called always.
    """
    for number, module in enumerate(modules):
        below.add_module(f"hung{number}", module)
    yield
    for number in range(len(modules)):
        delattr(below, f"hung{number}")


def _prepare(model: nn.Module, spec: ParallelSpec) -> None:
    """Before anything is cut: what is to be a parameter is one, and the whole model is remembered."""
    if not hasattr(model, "twin"):
        if spec.zero == 3:
            _frozen_bits_as_parameters(model)
        remember(model)


def _frozen_bits_as_parameters(model: nn.Module) -> None:
    """Weights of 4 bits as parameters, which are what FSDP2 shares out; their mean, a number, stays."""
    for module in model.modules():
        if isinstance(module, NF4Linear):
            for name, kept in module.quantized.tensors().items():
                if kept is not None and kept.ndim:
                    delattr(module, name)
                    module.register_parameter(name, nn.Parameter(kept, requires_grad=False))
