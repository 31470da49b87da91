"""Held-out prompts are answered and scored: what a policy is measured by, where no text says what is right."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from intaglio.models.heads import decoder_of
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.batching.batches import Batch
from intaglio.training.batching.prompts import PromptBatch
from intaglio.training.objectives.metrics import Mean, Metric
from intaglio.training.objectives.objective import Loss, Objective
from intaglio.training.processes.ranks import ALONE, Ranks
from intaglio.training.reference import Starting
from intaglio.training.rl.rewards import Rewards
from intaglio.training.rollout import Drawing, drawn_answers

__all__ = ["Examined"]


@dataclass(frozen=True)
class Examined:
    """An objective, and for prompts that are held out an exam: the loss is the mean reward, negative.

    Attributes:
        objective: of everything else.
        tokenizer: the policy's.
        rewards: what answers are judged by.
        how: answers are made; greedily, as a rule, so that two exams differ by the weights alone.
        starting: what the policy is compared with, of which a checkpoint holds what it must; None where it is not.
        ranks: that share the policy.
    """

    objective: Objective
    tokenizer: Tokenizer
    rewards: Rewards
    how: Drawing
    starting: Starting | None = None
    ranks: Ranks = ALONE

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        """See `Objective`."""
        return self._exam(model, batch) if isinstance(batch, PromptBatch) else self.objective(model, batch)

    def state(self) -> dict[str, Tensor]:
        """See `Stateful`."""
        return self.starting.state() if self.starting else {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """See `Stateful`."""
        if self.starting:
            self.starting.load_state(state)

    def _exam(self, model: nn.Module, batch: PromptBatch) -> Loss:
        ids = [prompt.prompt.tolist() for prompt in batch.prompts]
        with self.ranks.whole(model) as policy:
            answers = [row[0] for row in drawn_answers(decoder_of(policy), self.tokenizer, ids, self.how)]
        scores, each = self.rewards(batch.prompts, answers)
        metrics: dict[str, Metric] = {
            "reward": Mean.of(scores[scores.isfinite()]),
            "completions/mean_length": Mean.of(torch.tensor([float(len(answer.ids)) for answer in answers])),
            "completions/clipped_ratio": Mean.of(torch.tensor([float(not answer.ended) for answer in answers])),
        }
        metrics |= {f"rewards/{name}/mean": Mean.of(values[values.isfinite()]) for name, values in each.items()}
        return Loss(-scores.nan_to_num(0.0).sum(), metrics=metrics)
