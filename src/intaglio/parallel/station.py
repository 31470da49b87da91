"""What the pipeline engine calls: one stage with its micro-batches.

The engine sends what a stage has made to the next one, and its gradient back. Everything else of a micro-batch, its
positions and where its documents end, every rank has read itself, so it only needs to be told the number. Micro-batches
have as many tokens as there were, while the engine's buffers have one size: what is sent is filled up to `room` tokens,
and cut again where it arrives, so that nothing is computed for the rest.

Legend: N tokens of a packed batch, n of them on this rank (where tp shares them out), R room for those, E features.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from intaglio.models.heads import decoder_of
from intaglio.parallel.stages import DecoderStage
from intaglio.parts.context import AttentionContext

__all__ = ["MicroBatch", "Station", "Work"]


class MicroBatch(Protocol):
    """What a stage asks of a micro-batch."""

    @property
    def ids(self) -> Tensor:
        """(1, N)"""

    @property
    def positions(self) -> Tensor:
        """(1, N)"""


class Work(Protocol):
    """What is done with a micro-batch; what it tells must be picklable, as it goes to all ranks."""

    def context(self, batch: Any) -> AttentionContext:
        """How attention reads it."""

    def passing(self, model: nn.Module, batch: Any) -> tuple[Tensor | None, Any]:
        """After it has gone through a stage that is not the last.

        Returns:
            what that stage adds to the loss (a scalar, such as the balance of its experts) or None; and what is told.
        """

    def arriving(self, model: nn.Module, batch: Any) -> tuple[Tensor, Any]:
        """In the last stage, whose hidden states are still to be asked for, once.

        Returns:
            the loss, a scalar whose gradient all stages get; and what is told.
        """


class Station(nn.Module):
    """A stage at work.

    Args:
        model: the stage, see `stages.split`.
        dtype: in which features go from stage to stage.
        tokens: n of N.

    Attributes:
        room: R.
        batches: of this step, by number.
        work: what is done with them.
        told: what that said, by the micro-batch's number.
    """

    batches: Sequence[MicroBatch]
    work: Work

    def __init__(self, model: nn.Module, dtype: torch.dtype, tokens: Callable[[int], int]) -> None:
        super().__init__()
        self.model, self.dtype, self.tokens = model, dtype, tokens
        self.room = 0
        self.told: dict[int, Any] = {}

    @property
    def decoder(self) -> DecoderStage:
        """The stage itself, under its head if it has one."""
        found = decoder_of(self.model)
        assert isinstance(found, DecoderStage)
        return found

    def forward(self, arrived: Tensor, number: Tensor) -> Tensor:
        """One micro-batch.

        Args:
            arrived: (1, R, E), or anything in the first stage.
            number: (1,), of the micro-batch.

        Returns:
            (1, R, E), or of the last stage the loss, a scalar.
        """
        place = int(number)
        batch, decoder = self.batches[place], self.decoder
        if not decoder.first:
            decoder.arrived = _Cut.apply(arrived, self.tokens(batch.ids.shape[1]))
        if decoder.last:
            _show_output_matrix(decoder)
            loss, self.told[place] = self.work.arriving(self.model, batch)
            return loss
        hidden = decoder.hidden_states(batch.ids, batch.positions, self.work.context(batch))  # (1, n, E)
        aside, self.told[place] = self.work.passing(self.model, batch)
        return self._ready(hidden if aside is None else _Beside.apply(hidden, aside))

    def _ready(self, hidden: Tensor) -> Tensor:
        """To be sent: (1, n, E) -> (1, R, E)."""
        hidden = F.pad(hidden.to(self.dtype), (0, 0, 0, self.room - hidden.shape[1])).contiguous()
        frozen = torch.is_grad_enabled() and not hidden.requires_grad
        return hidden.requires_grad_() if frozen else hidden  # the engine sends a gradient to every stage


def _show_output_matrix(decoder: DecoderStage) -> None:
    """FSDP2 gathers a group when its module is called, which the last stage's copy of tied embeddings never is."""
    table = decoder.embed_tokens
    if not decoder.first and isinstance(table, FSDPModule):
        table.unshard()


class _Cut(torch.autograd.Function):
    """The first n places of (1, R, E). The gradient is dense, as it must be where it is sent (gloo sends strided
    tensors wrongly)."""

    @staticmethod
    def forward(ctx: Any, arrived: Tensor, length: int) -> Tensor:
        ctx.room = arrived.shape[1]
        return arrived[:, :length]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return F.pad(gradient, (0, 0, 0, ctx.room - gradient.shape[1])).contiguous(), None


class _Beside(torch.autograd.Function):
    """Features as they are, and beside them a scalar that is part of the loss: its gradient is 1 when theirs comes."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, aside: Tensor) -> Tensor:
        ctx.save_for_backward(torch.ones_like(aside))
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (one,) = ctx.saved_tensors
        return gradients[0], one
