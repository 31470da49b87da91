"""torch.compile for the parts of a layer that do not know of documents.

Attention goes document by document, however many a row packs, so a compiler would start again for every new row. What
stands around it sees N tokens and nothing else: the norm before attention, the projections to queries, keys and values
with their norms, and the whole feed-forward branch with its norm and sum become one graph each, for any N and for all
layers alike. A mixture of experts stays as it is, since each batch cuts its rows elsewhere; so do rotary positions and
the loss.

Generation and evaluation run uncompiled: they come in shapes of their own, each of which would be compiled for once.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.parts.attention import Attention
from intaglio.parts.block import Block
from intaglio.parts.feed_forward import FeedForward
from intaglio.parts.norm import LayerNorm, RMSNorm

__all__ = ["compile_parts", "require_compiler"]

Function = Callable[..., Any]


def compile_parts(model: Decoder, backend: str = "inductor") -> None:
    """Compiles in place, when each part is first run; names of parameters stay what they are.

    Args:
        model: trained.
        backend: see `torch.compile`.
    """
    compiled = partial(_compiled, backend=backend)
    for layer in model.layers:
        assert isinstance(layer, Block)
        if isinstance(layer.attention, Attention):
            layer.attention.project = compiled(layer.attention.project)  # type: ignore[method-assign]
        branch = layer.feed_forward_norm
        if isinstance(layer.feed_forward, FeedForward):
            run = "branch" if layer.parallel else "forward"
            setattr(branch, run, compiled(getattr(branch, run)))
        else:
            _compile_norms(branch, compiled)
        _compile_norms(layer.attention_norm, compiled)
    _compile_norms(model, compiled)


def require_compiler(device: str) -> None:
    """Compiles a sum, so that a run is refused before it starts.

    Raises:
        UserError: this machine cannot compile for `device`.
    """
    try:
        torch.compile(lambda x: x + x, fullgraph=True)(torch.ones(2, device=device))
    except Exception as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        mend = "install a C++ compiler (g++ or clang), or leave compile out of the recipe"
        raise UserError(f"cannot compile here: {why}", where="compile", mend=mend) from error


def _compile_norms(parent: nn.Module, compiled: Callable[[Function], Function]) -> None:
    for part in parent.children():
        if isinstance(part, (RMSNorm, LayerNorm)):
            part.forward = compiled(part.forward)  # type: ignore[method-assign]


def _compiled(plain: Function, backend: str) -> Function:
    """`plain` compiled for any number of tokens, whole or not at all; as it was where no gradient is wanted."""
    fast = torch.compile(plain, dynamic=True, fullgraph=True, backend=backend)

    def either(*inputs: Any) -> Any:
        return fast(*inputs) if torch.is_grad_enabled() else plain(*inputs)

    return either
