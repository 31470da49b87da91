"""Kahneman-Tversky optimisation (Ethayarajh et al. 2024, arXiv 2402.01306): answers that were wanted, and such as not.

With h(x, y) = log pi(y | x) - log pi_ref(y | x):

    z = max(0, mean over the micro-batch of h(x_i, y_{i-1}))                                         section 4.2
    desirable     w_D (1 - sigmoid(beta (h - z)))
    undesirable   w_U (1 - sigmoid(beta (z - h)))                                                    equation 8

z estimates KL(pi || pi_ref) from prompts with the answer of the example before, round the micro-batch; no gradient
goes through it. So the loss depends on what shares a micro-batch, as TRL's does, and one example alone has no z.

Legend: D examples, n scored tokens, N tokens, E features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor, nn

from intaglio.models.decoder import Decoder
from intaglio.training.batching.batches import Batch
from intaglio.training.batching.forks import ForkedBatch, ForkedExample, make_forked
from intaglio.training.objectives.branches import branch_log_probs, fork_states, scored_log_probs, token_metrics
from intaglio.training.objectives.metrics import Mean, Metric
from intaglio.training.objectives.mixtures import balance
from intaglio.training.objectives.objective import Loss
from intaglio.training.reference import Reference

__all__ = ["KTO", "KTOBatch", "kto_losses", "make_rotated", "rotated"]


@dataclass(frozen=True)
class KTOBatch(ForkedBatch):
    """Single answers, and the same prompts with answers of others.

    Attributes:
        mismatched: each prompt with the answer of the example before.
    """

    mismatched: ForkedBatch

    def to(self, device: torch.device | str) -> "KTOBatch":
        """See `Batch`."""
        moved = super().to(device)
        assert isinstance(moved, KTOBatch)
        mismatched = self.mismatched.to(device)
        assert isinstance(mismatched, ForkedBatch)
        return replace(moved, mismatched=mismatched)


def rotated(examples: Sequence[ForkedExample], max_length: int) -> list[ForkedExample]:
    """Each prompt with the answer of the example before, the first with the last's; cut where it gets too long.

    Of two or more examples none keeps its own answer.
    """
    others = [examples[-1], *examples[:-1]]
    return [_swapped(mine, other, max_length) for mine, other in zip(examples, others, strict=True)]


def _swapped(mine: ForkedExample, other: ForkedExample, max_length: int) -> ForkedExample:
    prompt = mine.fork[0]
    room = max(max_length - prompt, 1)
    answer = slice(other.fork[0], other.fork[0] + room)
    ids = np.concatenate((mine.prompt, other.ids[answer]))
    scored = np.concatenate((mine.supervised[:prompt], other.supervised[answer]))
    scored[0] = False  # nothing stands before it that could tell
    return ForkedExample(ids, scored, mine.where, (prompt, len(ids) - prompt))


def make_rotated(examples: Sequence[ForkedExample], max_length: int) -> KTOBatch:
    """One micro-batch with the mismatched answers it needs."""
    own = make_forked(examples)
    known = {field.name: getattr(own, field.name) for field in fields(ForkedBatch)}
    return KTOBatch(**known, mismatched=make_forked(rotated(examples, max_length)))


def kto_losses(ratios: Tensor, desirable: Tensor, z: Tensor, beta: float, weights: tuple[float, float]) -> Tensor:
    """The loss of each example, (D,).

    Args:
        ratios: (D,), h.
        desirable: (D,) bool.
        z: a number.
        beta: how far the policy is held to the reference.
        weights: w_D and w_U.
    """
    gains = torch.where(desirable, ratios - z, z - ratios)
    return torch.where(desirable, weights[0], weights[1]) * (1 - torch.sigmoid(beta * gains))


class KTO:
    """A loss over single answers; its targets are these.

    Args:
        reference: what the policy is held to.
        beta: see `kto_losses`.
        desirable_weight: w_D. With n_D and n_U answers of each kind, w_D n_D / (w_U n_U) is best between 1 and 4/3
            (section 4.2).
        undesirable_weight: w_U.
        chunk: tokens whose logits exist at once.
    """

    def __init__(
        self,
        reference: Reference,
        beta: float = 0.1,
        desirable_weight: float = 1.0,
        undesirable_weight: float = 1.0,
        chunk: int = 1024,
    ) -> None:
        self.reference, self.beta, self.chunk = reference, beta, chunk
        self.weights = desirable_weight, undesirable_weight

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        """See `Objective`."""
        assert isinstance(model, Decoder)
        assert isinstance(batch, KTOBatch)
        z = self._divergence(model, batch.mismatched)
        expected = self.reference.log_probs(model, batch)  # (D,)
        hidden = fork_states(model, batch)  # (N, E)
        log_probs = batch.by_branch(scored_log_probs(model, hidden, batch.places, batch.targets, self.chunk))
        ratios = log_probs - expected
        losses = kto_losses(ratios, batch.desirable, z, self.beta, self.weights)
        metrics = {"kl": Mean.of(z), **_by_label(self.beta * ratios, log_probs, batch.desirable)}
        if not model.training:
            metrics |= token_metrics(model, hidden, batch, batch.desirable, self.chunk)
        extra, experts = balance(model)
        return Loss((losses * batch.weights).sum(), extra, metrics, experts)

    @torch.no_grad()
    def _divergence(self, model: Decoder, mismatched: ForkedBatch) -> Tensor:
        """z, a number without a gradient."""
        ratios = branch_log_probs(model, mismatched, self.chunk) - self.reference.log_probs(model, mismatched)
        return ratios.mean().clamp(min=0)

    def state(self) -> dict[str, Tensor]:
        """The reference's."""
        return self.reference.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        """See `Reference.load_state`."""
        self.reference.load_state(state)


def _by_label(rewards: Tensor, log_probs: Tensor, desirable: Tensor) -> dict[str, Metric]:
    """Means over the answers of each kind; of a kind that is absent nothing is told."""
    metrics: dict[str, Metric] = {}
    for name, kind in (("chosen", desirable), ("rejected", ~desirable)):
        metrics |= {f"rewards/{name}": Mean.of(rewards[kind]), f"logps/{name}": Mean.of(log_probs[kind])}
    if desirable.any() and not desirable.all():
        margin = rewards[desirable].mean() - rewards[~desirable].mean()
        metrics["rewards/margins"] = Mean.of(margin)
    return metrics
