"""Group-relative policy optimisation (Shao et al. 2024), and what others made of it.

    A_i     = (reward_i - mean of the group) / (spread of the group + 1e-4)               (see `advantages`)
    r_t     = exp(log pi(a_t) - log pi_old(a_t));  of the `sequence`, exp of the answer's mean log-ratio (GSPO)
    loss    = max(-A r, -A clip(r, 1 - epsilon, 1 + epsilon_high)) + beta * k3(reference)

How tokens become one number is said in `rollouts.weighed`. Where the answers were drawn by the policy as it is (one
iteration, one mini-batch), every ratio is 1 and the mean over answers of equal weight is -mean(A) = 0, though its
gradient is not. A mean over tokens is 0 for answers of equal length alone: longer answers count more, on purpose (TRL's
issue 2995).

Legend: n tokens of all answers.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from intaglio.models.heads import decoder_of
from intaglio.training.batching.batches import Batch
from intaglio.training.objectives.actions import Reader
from intaglio.training.objectives.metrics import Least, Mean, Metric, Most
from intaglio.training.objectives.mixtures import balance
from intaglio.training.objectives.objective import Loss
from intaglio.training.objectives.policy_loss import PolicyLoss, RatioOf, clipped_policy_loss, means_by_answer
from intaglio.training.objectives.watch import Watch, told
from intaglio.training.rl.kl_control import divergence
from intaglio.training.rl.rollouts import RolloutBatch

__all__ = ["GRPO"]


class GRPO:
    """See above.

    Args:
        reader: how answers are read.
        watch: is told how far the policy has gone from the one that drew.
        epsilon, epsilon_high: the trust region; the second is the first unless given.
        beta: weight of the divergence from the reference; 0 needs none.
        ratio_of: whose ratio is clipped.
    """

    def __init__(
        self,
        reader: Reader,
        watch: Watch,
        *,
        epsilon: float = 0.2,
        epsilon_high: float | None = None,
        beta: float = 0.0,
        ratio_of: RatioOf = "token",
    ) -> None:
        self.reader, self.watch = reader, watch
        self.epsilon, self.epsilon_high, self.beta, self.ratio_of = epsilon, epsilon_high, beta, ratio_of

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        """See `Objective`; the batch's targets are the tokens of its answers that are learned from."""
        assert isinstance(batch, RolloutBatch)
        now = self.reader(model, batch)
        log_ratio = now.log_probs - batch.log_probs
        if self.ratio_of == "sequence":
            log_ratio = means_by_answer(log_ratio, batch.lengths)
        policy = clipped_policy_loss(log_ratio, batch.advantages, self.epsilon, self.epsilon_high)
        self.watch.note(policy.approx_kl)
        losses, metrics = self._with_reference(policy.losses, now.log_probs, batch)
        metrics |= {"entropy": Mean.of(now.entropies), **_clipped(policy, batch.lengths)}
        extra, experts = balance(decoder_of(model))
        return Loss((losses * batch.weights).sum(), extra, metrics | told(batch), experts)

    def _with_reference(
        self, losses: Tensor, log_probs: Tensor, batch: RolloutBatch
    ) -> tuple[Tensor, dict[str, Metric]]:
        if not self.beta:
            return losses, {}
        away = divergence(log_probs, batch.reference, "k3")  # (n,)
        return losses + self.beta * away, {"kl": Mean.of(away)}


def _clipped(policy: PolicyLoss, lengths: Sequence[int]) -> dict[str, Metric]:
    """How many tokens left the trust region, of all and of the answer with the fewest (or the most) of them."""
    metrics: dict[str, Metric] = {
        "clip_ratio/low_mean": Mean.of(policy.low),
        "clip_ratio/high_mean": Mean.of(policy.high),
        "clip_ratio/region_mean": Mean.of(policy.low | policy.high),
    }
    if len(policy.low):
        low, high = (means_by_answer(side.float(), lengths) for side in (policy.low, policy.high))
        metrics |= {"clip_ratio/low_min": Least(float(low.min())), "clip_ratio/high_max": Most(float(high.max()))}
    return metrics
