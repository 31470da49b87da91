"""Random weights to train from."""

import math

import torch
from torch import nn

from intaglio.models.decoder import Decoder

__all__ = ["init_weights"]

_STD = 0.02
_INTO_RESIDUAL = ("o_proj", "down_proj")


@torch.no_grad()
def init_weights(model: Decoder, seed: int) -> None:
    """Matrices and embeddings N(0, 0.02); those that write into the residual stream divided by sqrt(2 * layers).

    So the stream's variance does not grow with depth at the start (Radford et al. 2019, section 2.3). Biases are 0 and
    norms do nothing. Where the norm stands behind the sublayer it undoes the division, and nothing is lost.
    """
    generator = torch.Generator().manual_seed(seed)
    small = _STD / math.sqrt(2 * model.spec.num_layers)
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            into_residual = any(part in name for part in _INTO_RESIDUAL)
            parameter.normal_(0.0, small if into_residual else _STD, generator=generator)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    model.tie_weights()
