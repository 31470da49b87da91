"""What a recipe may add around the loop: recomputing activations, noise on embeddings."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from intaglio import native
from intaglio.models.decoder import Decoder
from intaglio.parts.lora import LowRank
from intaglio.parts.moe import Router
from intaglio.training.batching.batches import Batch
from intaglio.training.objectives.objective import Loss, Objective

__all__ = ["NoisyEmbeddings", "recompute_activations", "without_dropout"]


def recompute_activations(model: Decoder, which: int | Literal["selective"]) -> None:
    """Keeps less of the forward, and computes the rest again in the backward.

    A number: of every so many layers only the input is kept (Chen et al. 2016). Selective: of every layer the input and
    what took long to make, the results of matrix products and of fused attention; the cheap rest is made again
    (Korthikanti et al. 2022, section 5). Attention that is written out (capped scores, latent attention on a CPU) is
    made again as a whole: its scores are what takes the room.
    """
    selective = which == "selective"
    for layer in list(model.layers)[:: 1 if which == "selective" else which]:
        around = partial(_around, layer, selective)
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, context_fn=around)


_Context = AbstractContextManager[Any]


def _around(layer: nn.Module, selective: bool) -> tuple[_Context, _Context]:
    """What a layer's forward stands in, and what its repetition does."""
    first, second = create_selective_checkpoint_contexts(_kept()) if selective else (nullcontext(), nullcontext())
    return first, _as_they_were(layer, second)


@contextmanager
def _as_they_were(layer: nn.Module, inner: _Context) -> Iterator[None]:
    """Routers remember the forward, not its repetition, all of whose graph would stay with what they remember."""
    routers = [module for module in layer.modules() if isinstance(module, Router)]
    remembered = [(router.scores, router.chosen) for router in routers]
    try:
        with inner:
            yield
    finally:
        for router, (scores, chosen) in zip(routers, remembered, strict=True):
            router.scores, router.chosen = scores, chosen


def without_dropout(model: nn.Module) -> None:
    """Switches dropout off for good, adapters' too: what is compared with a model that has none must have none."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, LowRank):
            module.dropout = 0.0


def _kept() -> list[OpOverload]:
    """The products and the fused kernels of each device, as autograd calls them."""
    aten = torch.ops.aten
    own = [torch.ops.intaglio.documents_attention.default] if native.available() else []
    return [
        *own,
        aten.mm.default,
        aten.addmm.default,
        aten._grouped_mm.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    ]


class NoisyEmbeddings:
    """NEFTune: uniform noise of +-alpha / sqrt(length * features) on the embeddings of each document while training.

    (Jain et al. 2023, arXiv 2310.05914, algorithm 1.) Nothing stays on the model after a call.
    """

    def __init__(self, objective: Objective, alpha: float) -> None:
        self.objective, self.alpha = objective, alpha

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        """See `Objective`."""
        if not model.training:
            return self.objective(model, batch)
        assert isinstance(model, Decoder)
        handle = model.embed_tokens.register_forward_hook(partial(self._add_noise, lengths=batch.documents))
        try:
            return self.objective(model, batch)
        finally:
            handle.remove()

    def _add_noise(self, module: nn.Module, inputs: object, out: Tensor, lengths: list[int]) -> Tensor:
        scale = [self.alpha / math.sqrt(length * out.shape[-1]) for length in lengths for _ in range(length)]
        bound = torch.tensor(scale, dtype=out.dtype, device=out.device)[None, :, None]  # (1, N, 1)
        return out + (torch.rand_like(out) * 2 - 1) * bound
