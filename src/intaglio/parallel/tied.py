"""A tied embedding matrix whose two users stand on two ranks: copies that stay equal.

Both start from the same weights. After the backward each rank adds the other's gradient to its own, so that both have
the gradient of the one matrix there is, and both optimizers make the same step.

Legend: V vocabulary, E features.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

__all__ = ["TIED", "TiedCopies"]

TIED: Final = "embed_tokens.weight"
"""What the matrix is called, at the end of its name."""


class TiedCopies:
    """The matrix (V, E) on the first and on the last rank of a pipeline.

    Args:
        group: the ranks of the pipeline, of which the first has the first stage.
        last: the rank in it that has the last stage.
    """

    def __init__(self, group: dist.ProcessGroup, last: int) -> None:
        self._group, self._last = group, last
        self._rank = dist.get_rank(group)

    def counts(self, name: str) -> bool:
        """Whether this rank answers for the parameter of that name; for the copy on the last one the first does."""
        return self._rank != self._last or self._rank == 0 or not name.endswith(TIED)

    def named(self, names: Iterable[str]) -> list[str]:
        """Those of them that this rank answers for."""
        return [name for name in names if self.counts(name)]

    @torch.no_grad()
    def join(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Adds the two copies' gradients, each on its rank; on all other ranks, and where it is frozen, nothing.

        Args:
            parameters: by name, with this step's gradients, such as the masters.
        """
        if self._last == 0 or self._rank not in (0, self._last):
            return
        gradients = [p.grad for name, p in parameters.items() if name.endswith(TIED) and p.grad is not None]
        for gradient in gradients:
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            local.add_(self._exchanged(local))

    def _exchanged(self, mine: Tensor) -> Tensor:
        """The other rank's."""
        peer = self._last if self._rank == 0 else 0
        theirs = torch.empty_like(mine, memory_format=torch.contiguous_format)
        sent = dist.P2POp(dist.isend, mine.contiguous(), group=self._group, group_peer=peer)
        received = dist.P2POp(dist.irecv, theirs, group=self._group, group_peer=peer)
        for work in dist.batch_isend_irecv([sent, received]):
            work.wait()
        return theirs
