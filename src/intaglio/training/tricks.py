"""What a recipe may add around the loop: recomputing activations, noise on embeddings."""

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from intaglio.models.decoder import Decoder
from intaglio.training.batches import Batch
from intaglio.training.objectives.objective import Loss, Objective

__all__ = ["NoisyEmbeddings", "recompute_activations"]


def recompute_activations(model: Decoder, every: int) -> None:
    """Of every `every`-th layer only the input is kept; the backward runs the layer again (Chen et al. 2016)."""
    for layer in list(model.layers)[::every]:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


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
