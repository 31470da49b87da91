"""Documents that lie end to end as rows of a matrix, and back: for models that read rows.

Legend: D documents, T tokens of the longest, N tokens of all.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

__all__ = ["as_rows", "real_places"]


def as_rows(flat: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """(N,) and the lengths of the documents in it -> (D, T), zeros on the right, and (D,)."""
    return pad_sequence(flat.split(list(lengths)), batch_first=True), torch.tensor(lengths, device=flat.device)


def real_places(rows: Tensor, lengths: Tensor) -> Tensor:
    """(D, T, ...) without what stands behind each row's end: (N, ...), document behind document."""
    return rows[torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]]
