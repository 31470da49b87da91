"""Documents that fork, a prompt and the answers that go on from it, and the micro-batches they make.

Legend: N tokens of the batch, D documents, b branches of all documents, n tokens that are scored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from intaglio.data.examples import Example
from intaglio.data.preference_encoding import CompletionExample, PairExample
from intaglio.parts.forked import fork_positions
from intaglio.training.batching.batches import IGNORE, Batch

__all__ = ["ForkedBatch", "ForkedExample", "forked", "make_forked"]


@dataclass(frozen=True)
class ForkedExample(Example):
    """A prompt and its answers end to end in `ids`; `supervised` says which tokens of the answers are scored.

    Attributes:
        fork: tokens of the prompt and of each answer; of a pair chosen stands before rejected.
        weight: in a mean over examples.
        margin: by how much chosen is better than rejected; 0: nobody said.
        desirable: of a single answer whether it was wanted.
    """

    fork: tuple[int, ...]
    weight: float = 1.0
    margin: float = 0.0
    desirable: bool = True

    @property
    def prompt(self) -> np.ndarray:
        """The prompt's ids."""
        return self.ids[: self.fork[0]]

    @cached_property
    def key(self) -> bytes:
        """16 bytes that say what a model reads here and what of it is scored."""
        said = blake2b(self.ids.tobytes(), digest_size=16)
        said.update(self.supervised.tobytes())
        said.update(np.array(self.fork, dtype=np.int64).tobytes())
        return said.digest()


@dataclass(frozen=True)
class ForkedBatch(Batch):
    """A micro-batch of documents that fork. A place may predict several tokens, so `labels` are all -100.

    Attributes:
        forks: of each document tokens of prompt and branches, see `Forked`.
        places: (n,) int64, the place that predicts each scored token: the one before it in its branch, or the prompt's
            last.
        targets: (n,) int64, those tokens.
        owners: (n,) int64, the branch each is of, counted through all documents.
        ends: (b,) int64, the last place of each branch.
        weights: (D,) float32, of each document in the loss; they sum to `num_targets`.
        margins: (D,) float32, see `ForkedExample`.
        desirable: (D,) bool, see `ForkedExample`.
        keys: of each document, see `ForkedExample`.
    """

    forks: list[tuple[int, ...]]
    places: Tensor
    targets: Tensor
    owners: Tensor
    ends: Tensor
    weights: Tensor
    margins: Tensor
    desirable: Tensor
    keys: list[bytes]

    @property
    def predicted(self) -> int:
        """Tokens that are scored."""
        return len(self.targets)

    @property
    def lengths(self) -> Tensor:
        """(b,) scored tokens of each branch."""
        return torch.bincount(self.owners, minlength=len(self.ends))

    def by_branch(self, values: Tensor) -> Tensor:
        """Sums of what the scored tokens have (n,), for each branch (b,)."""
        return values.new_zeros(len(self.ends)).index_add(0, self.owners, values)


def forked(example: PairExample | CompletionExample) -> ForkedExample:
    """The document that a prompt and one or two answers are."""
    parts = (example.prompt, *example.completions)
    unscored = np.zeros(len(example.prompt), dtype=np.bool_)
    ids, scored = np.concatenate(parts), np.concatenate((unscored, *example.masks))
    fork = tuple(map(len, parts))
    if isinstance(example, CompletionExample):
        return ForkedExample(ids, scored, example.where, fork, desirable=example.label)
    return ForkedExample(ids, scored, example.where, fork, example.weight, example.margin or 0.0)


def make_forked(examples: Sequence[ForkedExample]) -> ForkedBatch:
    """One micro-batch, document behind document."""
    ids = torch.from_numpy(np.concatenate([example.ids for example in examples]).astype(np.int64))  # (N,)
    scored = torch.from_numpy(np.concatenate([example.supervised for example in examples]))  # (N,)
    forks = [example.fork for example in examples]
    before, owners, ends = _branches(forks)
    chosen = scored.nonzero()[:, 0]
    weights = torch.tensor([example.weight for example in examples])
    return ForkedBatch(
        ids=ids[None],
        positions=torch.cat([fork_positions(fork) for fork in forks])[None],
        documents=[sum(fork) for fork in forks],
        labels=torch.full_like(ids, IGNORE)[None],
        num_targets=sum(example.weight for example in examples),
        wheres=[example.where for example in examples],
        forks=forks,
        places=before[chosen],
        targets=ids[chosen],
        owners=owners[chosen],
        ends=ends,
        weights=weights,
        margins=torch.tensor([example.margin for example in examples]),
        desirable=torch.tensor([example.desirable for example in examples]),
        keys=[example.key for example in examples],
    )


def _branches(forks: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor, Tensor]:
    """For each place the one before it on its path (N,) and its branch (N,), -1 in prompts; the branches' ends (b,)."""
    lengths = torch.tensor([length for fork in forks for length in fork])  # (D + b,)
    in_prompt = torch.tensor([number == 0 for fork in forks for number in range(len(fork))])
    ends = lengths.cumsum(0) - 1
    before = torch.arange(int(lengths.sum())) - 1
    starts = list(accumulate((sum(fork) for fork in forks), initial=0))
    prompt_ends = torch.tensor([start + fork[0] - 1 for start, fork in zip(starts, forks, strict=False) for _ in fork])
    filled = ~in_prompt & (lengths > 0)
    before[(ends - lengths + 1)[filled]] = prompt_ends[filled]
    numbers = torch.where(in_prompt, -1, (~in_prompt).cumsum(0) - 1)
    return before, numbers.repeat_interleave(lengths), ends[~in_prompt]
