"""Training in a pipeline beside training in one process: the same weights, batches and steps, in float64."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from intaglio.adapters.attach import attach
from intaglio.data.examples import Example
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier, init_head
from intaglio.models.init import init_weights
from intaglio.specs import DecoderSpec
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.parallel import ParallelSpec
from intaglio.training.batching.batches import Batch, make_batch
from intaglio.training.batching.forks import ForkedExample, make_forked
from intaglio.training.lesson import Exam, Lesson
from intaglio.training.objectives.language_model import LanguageModel
from intaglio.training.objectives.objective import Objective
from intaglio.training.objectives.reward import PairwiseReward
from intaglio.training.processes.ranks import ALONE, Ranks
from intaglio.training.processes.staged import Staged
from intaglio.training.stepping.master import MasterWeights
from parity import whole

__all__ = ["Case", "Learnt", "alone", "staged"]

VOCABULARY = 64


@dataclass(frozen=True)
class Case:
    """What is trained.

    Attributes:
        spec: of the decoder.
        micro_batches: of a step, on all ranks.
        steps: of the optimizer.
        lora: rank of an adapter on all layers; 0 for none.
        reward: a head that learns from pairs in place of a language model.
        dtype: that the model computes in.
    """

    spec: DecoderSpec
    micro_batches: int = 8
    steps: int = 2
    lora: int = 0
    reward: bool = False
    dtype: torch.dtype = torch.float64

    def model(self) -> Any:
        """The same on every rank, and masters fp64 where that is what is computed in."""
        kept = torch.promote_types(self.dtype, torch.float32)
        model: Any = Decoder(self.spec)
        init_weights(model, 1)
        model.to(kept)
        if self.reward:
            model = SequenceClassifier(model, 1)
            init_head(model, 2)
            model.drop_outputs()
        if self.lora:
            attach(model, LoRASpec(r=self.lora, lora_alpha=2 * self.lora, target_modules="all-linear"))
            _unsettle(model)
        return model.to(kept)

    def batches(self, step: int) -> list[Batch]:
        """Ragged ones, of another length each, the longest not in the first step."""
        dice = np.random.default_rng(step)
        made = _pairs if self.reward else _documents
        return [made(dice, 1 + (step + turn) % 4, min(10 + 8 * step, 22)) for turn in range(self.micro_batches)]

    def objective(self) -> Objective:
        """What is minimised."""
        return PairwiseReward(center=0.1) if self.reward else LanguageModel(chunk=7)


def _documents(dice: np.random.Generator, count: int, longest: int) -> Batch:
    return make_batch([_example(dice, int(length)) for length in dice.integers(2, longest, count)])


def _example(dice: np.random.Generator, length: int) -> Example:
    return Example(dice.integers(0, VOCABULARY, length, dtype=np.int32), dice.random(length) < 0.8, "here")


def _pairs(dice: np.random.Generator, count: int, longest: int) -> Batch:
    forks = [(int(dice.integers(1, longest)), int(dice.integers(2, 9)), int(dice.integers(2, 9))) for _ in range(count)]
    return make_forked([ForkedExample(*_fields(dice, fork), fork=fork) for fork in forks])


def _fields(dice: np.random.Generator, fork: Sequence[int]) -> tuple[np.ndarray, np.ndarray, str]:
    return dice.integers(0, VOCABULARY, sum(fork), dtype=np.int32), np.arange(sum(fork)) >= fork[0], "here"


@torch.no_grad()
def _unsettle(model: nn.Module) -> None:
    """An adapter that has begun: B is not 0."""
    dice = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.copy_(torch.randn(parameter.shape, generator=dice) * 0.1)


@dataclass
class Learnt:
    """What came of it: numbers are the same on every rank, parameters those that a rank answers for."""

    losses: list[float] = field(default_factory=list)
    extras: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    experts: list[Any] = field(default_factory=list)
    marks: list[float] = field(default_factory=list)
    parameters: dict[str, Tensor] = field(default_factory=dict)

    def gap(self, other: "Learnt") -> float:
        """The largest difference of any number and of any parameter that both have."""
        pairs = [(self.losses, other.losses), (self.extras, other.extras), (self.norms, other.norms)]
        pairs += [(self.marks, other.marks), (self.experts, other.experts)]
        numbers = [
            torch.tensor(one, dtype=torch.float64) - torch.tensor(two, dtype=torch.float64) for one, two in pairs
        ]
        shared = [p.double() - other.parameters[name].double() for name, p in self.parameters.items()]
        return max(float(difference.abs().max()) for difference in [*numbers, *shared] if difference.numel())


def alone(case: Case) -> Learnt:
    """In one process."""
    return _learnt(case, ALONE, lambda batches: batches)


def staged(case: Case, layout: ParallelSpec, expected: Learnt) -> tuple[float, list[str]]:
    """On this rank of a pipeline: how far it is from what is expected, and what the rank answers for."""
    ranks = Staged(layout, "cpu")
    learnt = _learnt(case, ranks, lambda batches: batches[ranks.number :: ranks.count])
    return learnt.gap(expected), [name for name in learnt.parameters if ranks.pipeline.counts(name)]


def _learnt(case: Case, ranks: Ranks, own: Callable[[list[Batch]], list[Batch]]) -> Learnt:
    model, found = case.model(), Learnt()
    masters, objective = ranks.lay_out(model, case.dtype, case.objective)
    optimizer = torch.optim.AdamW(masters.parameters(), lr=1e-2, weight_decay=0.1, foreach=False)
    for step in range(case.steps):
        _step(model.train(), masters, case, step, ranks, objective, own, found)
        optimizer.step()
        masters.publish()
        masters.zero_grad()
    model.eval()
    marks = ranks.examine(model, Exam(objective), own(case.batches(9)))
    found.marks = [mark.total for rank in ranks.gather(marks) for mark in rank]
    found.marks.sort()
    found.parameters = {name: whole(p) for name, p in masters.masters.items()}
    with ranks.whole(model) as put_together:
        if not dist.is_initialized() or dist.get_rank() == 0:
            _check_whole(put_together, found.parameters, case)
    return found


def _step(
    model: Any,
    masters: MasterWeights,
    case: Case,
    step: int,
    ranks: Ranks,
    objective: Objective,
    own: Callable[[list[Batch]], list[Batch]],
    found: Learnt,
) -> None:
    batches = case.batches(step)
    lesson = Lesson(objective, sum(batch.num_targets for batch in batches), scale=4.0)
    told = ranks.gather(ranks.learn(model, lesson, own(batches)))
    parts = [part for rank in told for part in rank]
    ranks.sum_gradients(masters)
    for parameter in masters.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(4.0)
    found.norms.append(ranks.clip(masters.parameters(), 0.5))
    found.losses.append(sum(part.loss for part in parts))
    found.extras.append(sum(part.extra for part in parts))
    found.experts += [use.shares for part in parts for use in part.experts]


def _check_whole(model: Any, parameters: dict[str, Tensor], case: Case) -> None:
    """It has every weight, those of this rank as they are, and runs."""
    named = dict(model.named_parameters())
    assert not [name for name, p in named.items() if p.is_meta]
    for name, p in parameters.items():
        torch.testing.assert_close(named[name].double(), p.double(), rtol=0, atol=1e-2 * (case.dtype == torch.bfloat16))
    with torch.no_grad():
        assert model(torch.tensor([[1, 2, 3]])).isfinite().all()
