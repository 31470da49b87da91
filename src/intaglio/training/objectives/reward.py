"""A reward model, from pairs (Stiennon et al. 2020; Ouyang et al. 2022, section 3.5).

    L = mean over pairs of  -log sigmoid( r(chosen) - r(rejected) - margin )  +  center (r(chosen) + r(rejected))^2

r is a score read at the answer's last token; a margin is by how much the one was found better (Touvron et al. 2023,
section 3.2.2). Only differences of r are learned; `center` keeps them about 0
(Eisenstein et al. 2023, arXiv 2312.09244). All pairs of a ranking of K answers weigh 1 / C(K, 2) each, as in
InstructGPT.

Legend: D pairs, b = 2 D answers, E features.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio.models.heads import SequenceClassifier
from intaglio.training.batching.batches import Batch
from intaglio.training.batching.forks import ForkedBatch
from intaglio.training.objectives.branches import fork_states
from intaglio.training.objectives.metrics import Least, Mean, Metric, Most
from intaglio.training.objectives.mixtures import balance
from intaglio.training.objectives.objective import Loss

__all__ = ["PairwiseReward", "branch_rewards", "reward_losses"]


def reward_losses(rewards: Tensor, margins: Tensor | float = 0.0, center: float = 0.0) -> Tensor:
    """The loss of each pair, (D,).

    Args:
        rewards: (D, 2), of chosen and rejected.
        margins: (D,), by how much chosen ought to be better.
        center: weight of the squared sum.
    """
    chosen, rejected = rewards.unbind(dim=1)
    losses = -F.logsigmoid(chosen - rejected - margins)
    return losses + center * (chosen + rejected).square() if center else losses


class PairwiseReward:
    """A loss over pairs; its targets are the pairs, by their weights.

    Args:
        center: see `reward_losses`.
        margins: whether those of the rows count.
    """

    def __init__(self, center: float = 0.0, margins: bool = True) -> None:
        self.center, self.margins = center, margins

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        """See `Objective`."""
        assert isinstance(model, SequenceClassifier)
        assert isinstance(batch, ForkedBatch)
        rewards = branch_rewards(model, batch).view(-1, 2)  # (D, 2), chosen and rejected
        losses = reward_losses(rewards, batch.margins if self.margins else 0.0, self.center)
        extra, experts = balance(model.decoder)
        return Loss((losses * batch.weights).sum(), extra, _metrics(rewards.detach()), experts)


def branch_rewards(model: SequenceClassifier, batch: ForkedBatch) -> Tensor:
    """r of each answer, (b,), in fp32 at least: bf16 has eight bits for a score, and differences are what counts."""
    last = fork_states(model.decoder, batch)[batch.ends]  # (b, E)
    dtype = torch.promote_types(last.dtype, torch.float32)
    return F.linear(last.to(dtype), model.score.weight.to(dtype))[:, 0]


def _metrics(rewards: Tensor) -> dict[str, Metric]:
    chosen, rejected = rewards.unbind(dim=1)
    return {
        "min_reward": Least(float(rewards.min())),
        "mean_reward": Mean.of(rewards),
        "max_reward": Most(float(rewards.max())),
        "accuracy": Mean.of(chosen > rejected),
        "margin": Mean.of(chosen - rejected),
    }
