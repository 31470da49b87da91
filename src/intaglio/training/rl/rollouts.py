"""Answers that the policy has made, with all that is learned from them; and how they become micro-batches.

A rollout lies flat: prompts end to end, answers end to end, and for every token of an answer a number of each kind. So
it is a few tensors, which a checkpoint holds as they are.

Legend: D answers, P tokens of all prompts, n tokens of all answers, N tokens of a micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from intaglio.training.batching.batches import Batch
from intaglio.training.batching.forks import ForkedExample, make_forked
from intaglio.training.objectives.policy_loss import Aggregation

__all__ = ["Rollout", "RolloutBatch", "batch_of", "flat_rollout", "joined_rollouts", "weighed"]


@dataclass(frozen=True)
class Rollout:
    """See above. What an objective has no use for is empty.

    Attributes:
        prompts: (P,) int32.
        prompt_lengths: (D,) int32; each answer has its prompt, also where several share one.
        answers: (n,) int32, the token that ended each one included.
        answer_lengths: (D,) int32.
        learned: (D,) bool; False for answers that were cut off where those are not learned from.
        log_probs: (n,) of the policy as it drew them.
        reference: (n,) of the reference.
        values: (n,) as the critic saw them then.
        advantages: (n,)
        returns: (n,)
        wheres: places of the prompts' rows.
    """

    prompts: Tensor
    prompt_lengths: Tensor
    answers: Tensor
    answer_lengths: Tensor
    learned: Tensor
    log_probs: Tensor
    reference: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    wheres: tuple[str, ...] = ()

    def __len__(self) -> int:
        """D"""
        return len(self.answer_lengths)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each answer."""
        found: list[int] = self.answer_lengths.tolist()
        return found

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "wheres"}

    @classmethod
    def of_tensors(cls, tensors: dict[str, Tensor], wheres: Sequence[str]) -> "Rollout":
        """The way back."""
        return cls(**tensors, wheres=tuple(wheres))


def flat_rollout(prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], wheres: Sequence[str]) -> Rollout:
    """A rollout of which nothing is known yet but who said what: a prompt and a place for each answer."""

    def flat(rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([token for row in rows for token in row], dtype=torch.int32)

    def lengths(rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([len(row) for row in rows], dtype=torch.int32)

    return Rollout(
        prompts=flat(prompts),
        prompt_lengths=lengths(prompts),
        answers=flat(answers),
        answer_lengths=lengths(answers),
        learned=torch.ones(len(answers), dtype=torch.bool),
        log_probs=torch.empty(0),
        reference=torch.empty(0),
        values=torch.empty(0),
        advantages=torch.empty(0),
        returns=torch.empty(0),
        wheres=tuple(wheres),
    )


def joined_rollouts(parts: Sequence[Rollout]) -> Rollout:
    """Several rollouts as one, in their order; all know the same of their answers."""
    names = parts[0].tensors()
    tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return Rollout.of_tensors(tensors, [where for part in parts for where in part.wheres])


@dataclass(frozen=True)
class RolloutBatch(Batch):
    """A micro-batch of prompts with their answers; its targets are the answers' tokens.

    Attributes:
        forks: of each document tokens of its prompt and of its answers.
        places: (n,) int64, where in the row each target is predicted; `labels` are all -100.
        targets: (n,) int64.
        lengths: targets of each answer; 0 where it is not learned from.
        weights: (n,) what each target's loss counts, so that the sum over targets of a step, divided by how many they
            are, is the mean that was asked for; see `weighed`.
        log_probs, reference, values, advantages, returns: (n,), or empty; see `Rollout`.
        told: what was measured on the whole rollout; in its first micro-batch alone.
        beside: a micro-batch of plain text to be learned beside (PPO-ptx), or None.
        text_share: targets of the step's answers for each target of its plain text: what is a sum over the latter and
            divided by the former becomes a mean.
    """

    forks: list[tuple[int, ...]]
    places: Tensor
    targets: Tensor
    lengths: list[int]
    weights: Tensor
    log_probs: Tensor
    reference: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    told: dict[str, float] = field(default_factory=dict)
    beside: Batch | None = None
    text_share: float = 0.0

    def to(self, device: torch.device | str) -> "RolloutBatch":
        """See `Batch.to`."""
        moved = super().to(device)
        assert isinstance(moved, RolloutBatch)
        return moved if self.beside is None else replace(moved, beside=self.beside.to(device))


_KNOWN = ("log_probs", "reference", "values", "advantages", "returns")


def batch_of(rollout: Rollout, chosen: Sequence[int]) -> RolloutBatch:
    """The answers of these numbers as one micro-batch, in this order, all targets weighing the same.

    Answers that stand beside each other and have the same prompt share it: it is computed once (see `parts.forked`).
    """
    prompts = rollout.prompts.split(rollout.prompt_lengths.tolist())
    answers = rollout.answers.split(rollout.lengths)
    groups = groupby(chosen, key=lambda i: prompts[i].tolist())
    made = make_forked([_forked(rollout, prompts, answers, list(group)) for _, group in groups])
    lengths = [int(rollout.learned[i]) * len(answers[i]) for i in chosen]
    known: dict[str, Any] = {name: _taken(getattr(rollout, name), rollout, chosen) for name in _KNOWN}
    return RolloutBatch(
        ids=made.ids,
        positions=made.positions,
        documents=made.documents,
        labels=made.labels,
        num_targets=len(made.targets),
        wheres=made.wheres,
        forks=made.forks,
        places=made.places,
        targets=made.targets,
        lengths=lengths,
        weights=torch.ones(len(made.targets)),
        **known,
    )


def _forked(
    rollout: Rollout, prompts: Sequence[Tensor], answers: Sequence[Tensor], group: Sequence[int]
) -> ForkedExample:
    """The document of a prompt and some answers to it."""
    prompt = prompts[group[0]]
    learned = [rollout.learned[i].expand(len(answers[i])) for i in group]
    return ForkedExample(
        ids=torch.cat([prompt, *(answers[i] for i in group)]).numpy(),
        supervised=torch.cat([torch.zeros(len(prompt), dtype=torch.bool), *learned]).numpy(),
        where=rollout.wheres[group[0]],
        fork=(len(prompt), *(len(answers[i]) for i in group)),
    )


def _taken(values: Tensor, rollout: Rollout, chosen: Sequence[int]) -> Tensor:
    """What belongs to the learned tokens of these answers; nothing of what is not known."""
    if not len(values):
        return values
    parts = values.split(rollout.lengths)
    return torch.cat([parts[i] for i in chosen if rollout.learned[i]] or [values[:0]])


def weighed(
    batches: Sequence[RolloutBatch], how: Aggregation, longest: int, rollout_share: float
) -> list[RolloutBatch]:
    """The micro-batches of one optimizer step with what each target counts.

    The loop adds up weight * loss and divides by the targets of the step. With n of those and D answers (those that are
    not learned from among them), that makes

    - `grpo`: the mean over answers of their means over tokens (Shao et al. 2024, equation 3), weight n / (D * length);
    - `bnpo`: the mean over tokens of the step, weight 1;
    - `dr_grpo`: the sum over tokens, over D answers of the greatest length allowed (Liu et al. 2025), weight
      n / (D * longest);
    - `dapo`: the sum over tokens, over as many as a step of this rollout has on average (Yu et al. 2025, equation 8),
      weight n / rollout_share: no token counts more for standing in a step of short answers.

    Answers that are not learned from have no targets, so no mean counts their tokens (TRL's issue 6369).

    Args:
        batches: of one step.
        how: see above.
        longest: tokens that an answer may have.
        rollout_share: learned tokens of the rollout, over the steps that it is cut into.
    """
    tokens = sum(int(batch.num_targets) for batch in batches)
    answers = sum(len(batch.lengths) for batch in batches)
    if how == "bnpo":
        return list(batches)
    if how == "grpo":
        return [replace(batch, weights=_by_length(batch.lengths) * (tokens / answers)) for batch in batches]
    whole = answers * longest if how == "dr_grpo" else max(rollout_share, 1.0)
    return [replace(batch, weights=torch.full_like(batch.weights, tokens / whole)) for batch in batches]


def _by_length(lengths: Sequence[int]) -> Tensor:
    """1 / length at each token of each answer: (n,)"""
    counts = torch.tensor(lengths)
    return (1 / counts.clamp(min=1).float()).repeat_interleave(counts)
