"""Proximal policy optimisation of a language model against a reward (Schulman et al. 2017; Ouyang et al. 2022).

    r_t     = exp(log pi(a_t) - log pi_old(a_t))
    policy  = mean over tokens of max(-A_t r_t, -A_t clip(r_t, 1 - cliprange, 1 + cliprange))
    value   = mean over tokens of max((V_t - R_t)^2, (clip(V_t, V_old +- cliprange_value) - R_t)^2) / 2
    loss    = policy + vf_coef * value  [ + ptx * -log p(next token) on plain text ]

Advantages A and returns R were made when the answers were (see `advantages`), the KL penalty among the rewards. The
last part is PPO-ptx (Ouyang et al. 2022, equation 2): a mean over the plain text's targets of the step.

Legend: n tokens of all answers.
"""

from torch import Tensor, nn

from intaglio.models.heads import decoder_of
from intaglio.parts.context import Packed
from intaglio.training.batching.batches import Batch
from intaglio.training.objectives.actions import Actions, Reader
from intaglio.training.objectives.language_model import LanguageModel
from intaglio.training.objectives.metrics import Mean, Metric, Variance
from intaglio.training.objectives.mixtures import balance
from intaglio.training.objectives.objective import Loss
from intaglio.training.objectives.policy_loss import PolicyLoss, clipped_policy_loss, clipped_value_loss
from intaglio.training.objectives.watch import Watch, told
from intaglio.training.rl.rollouts import RolloutBatch

__all__ = ["PPO"]


class PPO:
    """See above.

    Args:
        reader: how answers are read.
        watch: is told how far the policy has gone from the one that drew.
        cliprange, cliprange_value, vf_coef: see above.
        ptx: weight of plain text.
    """

    def __init__(
        self,
        reader: Reader,
        watch: Watch,
        *,
        cliprange: float = 0.2,
        cliprange_value: float = 0.2,
        vf_coef: float = 0.1,
        ptx: float = 0.0,
    ) -> None:
        self.reader, self.watch = reader, watch
        self.cliprange, self.cliprange_value, self.vf_coef, self.ptx = cliprange, cliprange_value, vf_coef, ptx
        self._language_model = LanguageModel(reader.chunk)

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        """See `Objective`; the batch's targets are the tokens of its answers."""
        assert isinstance(batch, RolloutBatch)
        now = self.reader(model, batch)
        policy = clipped_policy_loss(now.log_probs - batch.log_probs, batch.advantages, self.cliprange)
        value, bounded = clipped_value_loss(now.values, batch.values, batch.returns, self.cliprange_value)
        extra, experts = balance(decoder_of(model))
        total = policy.losses.sum() + self.vf_coef * value.sum()
        self.watch.note(policy.approx_kl)
        metrics = self._metrics(now, policy, value, bounded) | told(batch)
        if batch.beside is not None:
            text, of_text = self._text(model, batch.beside, batch)
            total, metrics = total + text, metrics | of_text
        return Loss(total, extra, metrics, experts)

    def _metrics(self, now: Actions, policy: PolicyLoss, value: Tensor, bounded: Tensor) -> dict[str, Metric]:
        """TRL's names; of the tokens of a step, where TRL's `val/ratio_var` is of the means of its micro-batches."""
        return {
            "policy/approxkl_avg": Mean.of(policy.approx_kl),
            "policy/clipfrac_avg": Mean.of((policy.ratio - 1).abs() > self.cliprange),
            "policy/entropy_avg": Mean.of(now.entropies),
            "loss/policy_avg": Mean.of(policy.losses),
            "loss/value_avg": Mean.of(value),
            "val/clipfrac_avg": Mean.of(bounded),
            "val/ratio": Mean.of(policy.ratio),
            "val/ratio_var": Variance.of(policy.ratio),
        }

    def _text(self, model: nn.Module, text: Batch, batch: RolloutBatch) -> tuple[Tensor, dict[str, Metric]]:
        """The plain text's loss, so that the loop's division by the step's targets leaves ptx times its mean."""
        decoder = decoder_of(model)
        hidden = decoder.hidden_states(text.ids, text.positions, Packed(text.documents))[0]
        nats = self._language_model.total(decoder, hidden, text)
        metrics: dict[str, Metric] = {"loss/ptx_avg": Mean(float(nats.detach()), text.num_targets)}
        return self.ptx * batch.text_share * nats, metrics
