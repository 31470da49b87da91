"""The softmax over a vocabulary of some rows of logits, and what losses are made of: one place for its numerics.

Legend: R rows, V vocabulary, or what this rank has of it where ranks share it (see `parallel.vocabulary`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from intaglio.parallel.vocabulary import WHOLE, Vocabulary
from intaglio.planning.training import LOSS_BLOCK

__all__ = ["Softmax", "block_rows", "softmax_of"]


@dataclass(frozen=True)
class Softmax:
    """What is known of some rows of logits, all of it in fp32 at least.

    Attributes:
        probabilities: (R, V); whoever has no more use for them may write there.
        partition: (R, 1), log of the sum of exp.
        chosen: (R, 1), the logit of each row's target.
        by_plain: (R, V) or a number: the derivative of these logits by those that came out of the output matrix.
        vocabulary: how it lies.
    """

    probabilities: Tensor
    partition: Tensor
    chosen: Tensor
    by_plain: Tensor | float
    vocabulary: Vocabulary = WHOLE

    @property
    def log_probs(self) -> Tensor:
        """(R,), log of the target's probability."""
        return (self.chosen - self.partition)[:, 0]

    def slope(self, targets: Tensor) -> Tensor:
        """The derivative (R, V) of -`log_probs` by the plain logits; the probabilities are gone afterwards."""
        places, here = self.vocabulary.find(targets)
        ones = torch.ones_like(self.chosen) if here is None else here[:, None].to(self.chosen.dtype)
        slope = self.probabilities.scatter_add_(-1, places[:, None], -ones)
        return slope if isinstance(self.by_plain, float) and self.by_plain == 1 else slope * self.by_plain


def block_rows(logits: Tensor, vocabulary: Vocabulary = WHOLE) -> int:
    """How many rows of logits to take at once: as many as a cache holds, all of them where ranks talk about each."""
    return len(logits) if vocabulary.sends else max(LOSS_BLOCK // logits.shape[1], 1)


def softmax_of(
    logits: Tensor,
    targets: Tensor,
    softcap: float | None = None,
    temperature: float = 1.0,
    vocabulary: Vocabulary = WHOLE,
) -> Softmax:
    """The softmax of cap(logits) / temperature.

    Args:
        logits: (R, V), as they came out of the output matrix; those in fp32 are written over.
        targets: (R,).
        softcap: see `DecoderSpec.logit_softcap`.
        temperature: divides the logits, behind the cap.
        vocabulary: how it lies.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    by_plain: Tensor | float = 1.0
    if softcap is not None:
        wide = torch.tanh(wide / softcap)
        by_plain = 1 - wide.square()
        wide = wide * softcap
    if temperature != 1:
        wide, by_plain = wide / temperature, by_plain / temperature
    places, here = vocabulary.find(targets)
    chosen = wide.gather(-1, places[:, None])  # (R, 1)
    if here is not None:
        chosen = vocabulary.sum(chosen * here[:, None])
    highest = vocabulary.highest(wide.amax(dim=-1, keepdim=True))
    powers = wide.sub_(highest).exp_()
    mass = vocabulary.sum(powers.sum(dim=-1, keepdim=True))
    return Softmax(powers.div_(mass), highest + mass.log(), chosen, by_plain, vocabulary)
