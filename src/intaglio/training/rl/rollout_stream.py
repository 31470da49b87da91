"""A stream of micro-batches that the policy makes for itself: it answers, and then learns from its answers for a while.

    prompts, in an order of the seed's ---> rollout ---> num_mini_batches steps, `epochs` times over ---> next rollout

Where the stream stands is a few numbers and the tensors of the rollout at hand, so that a run that was killed in the
middle of one goes on as if it had not been: the order of prompts and answers, and the seeds that answers are drawn
with, follow from the recipe's seed and counters.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from intaglio.data.preference_encoding import PromptExample
from intaglio.data.store import Source
from intaglio.errors import UserError
from intaglio.training.batching.batches import Batch, BatchStream
from intaglio.training.batching.prompts import prompts_of
from intaglio.training.objectives.policy_loss import Aggregation
from intaglio.training.objectives.watch import Watch
from intaglio.training.rl.kl_control import KLControl
from intaglio.training.rl.rollouts import Rollout, RolloutBatch, batch_of, weighed

__all__ = ["Make", "PlainText", "Plan", "PromptOrder", "RolloutStream"]

Make = Callable[[Sequence[PromptExample], int], tuple[Rollout, dict[str, float]]]
"""Answers some prompts, drawn with this seed."""


@dataclass(frozen=True)
class Plan:
    """How rollouts are cut.

    Attributes:
        micro_batch: answers of a micro-batch.
        accumulation: micro-batches of an optimizer step.
        mini_batches: optimizer steps that a rollout is cut into.
        epochs: how often it is learned from.
        group: answers to one prompt.
        longest: tokens that an answer may have.
        aggregation: see `weighed`.
        target_kl: see `PPOSpec`.
    """

    micro_batch: int
    accumulation: int
    mini_batches: int = 1
    epochs: int = 1
    group: int = 1
    longest: int = 128
    aggregation: Aggregation = "bnpo"
    target_kl: float | None = None

    @property
    def per_step(self) -> int:
        """Answers of an optimizer step."""
        return self.micro_batch * self.accumulation

    @property
    def answers(self) -> int:
        """Answers of a rollout."""
        return self.per_step * self.mini_batches

    @property
    def prompts(self) -> int:
        """Prompts of a rollout."""
        return self.answers // self.group

    @property
    def steps(self) -> int:
        """Optimizer steps of a rollout."""
        return self.mini_batches * self.epochs


class PromptOrder:
    """Prompts, epoch after epoch, each epoch in the order that their source gives it.

    Args:
        source: see `Source`.
        known: the prompts by their rows' places.
        seed: decides the orders.

    Raises:
        UserError: there are none.
    """

    def __init__(self, source: Source, known: Mapping[str, PromptExample], seed: int) -> None:
        self._source, self._known, self._seed = source, known, seed
        self.go_to(0, 0)

    def __len__(self) -> int:
        return len(self.prompts)

    def take(self, count: int) -> list[PromptExample]:
        """The next so many, across the border of an epoch if it comes to that."""
        found = []
        for _ in range(count):
            if self.row == len(self.prompts):
                self.go_to(self.epoch + 1, 0)
            found.append(self.prompts[self.row])
            self.row += 1
        return found

    def go_to(self, epoch: int, row: int) -> None:
        """Stands before a row of an epoch."""
        self.epoch, self.row = epoch, row
        self.prompts = prompts_of(self._source.windows(epoch, self._seed), self._known)
        if not self.prompts:
            raise UserError("there are no prompts to answer")

    def checksum(self) -> int:
        """Says which prompts these are, and in which order."""
        return zlib.crc32(b"".join(prompt.prompt.tobytes() for prompt in self.prompts))


@dataclass(frozen=True)
class PlainText:
    """What is learned beside the answers: see `PlainTextSpec`."""

    stream: BatchStream

    def beside(self, batches: Sequence[RolloutBatch]) -> list[RolloutBatch]:
        """A micro-batch of text for each of a step's."""
        texts = self.stream.step(len(batches))
        share = sum(batch.num_targets for batch in batches) / max(sum(text.num_targets for text in texts), 1)
        pairs = zip(batches, texts, strict=True)
        return [replace(batch, beside=text, text_share=share) for batch, text in pairs]


class RolloutStream:
    """See above; what `Loop` asks of a `BatchStream`.

    Args:
        prompts: what is answered.
        plan: how rollouts are cut.
        make: makes one of some prompts, drawn with a seed, and says what is logged of it.
        watch: where the objective says how far the policy has gone.
        control: what a checkpoint holds of the weight of the divergence; None where there is none.
        seed: of orders and answers.
        text: learned beside, or None.
    """

    def __init__(
        self,
        prompts: PromptOrder,
        plan: Plan,
        make: Make,
        watch: Watch,
        *,
        control: KLControl | None = None,
        seed: int = 0,
        text: PlainText | None = None,
    ) -> None:
        self._order, self._plan, self._make, self._watch = prompts, plan, make, watch
        self._control, self._seed, self._text = control, seed, text
        self._rollout: Rollout | None = None
        self._rollouts = self._done = 0
        self._told: dict[str, float] = {}

    @property
    def epoch(self) -> int:
        """How many times all prompts have been answered."""
        return self._order.epoch

    @property
    def num_rows(self) -> int:
        """Answers that are learned from while every prompt is asked once, those of later epochs of a rollout too."""
        return len(self._order) * self._plan.group * self._plan.epochs

    @property
    def efficiency(self) -> float:
        """Nothing is padded."""
        return 1.0

    @property
    def mean_document(self) -> int:
        """Tokens of prompt and answer, if answers were as long as they may be."""
        lengths = [len(prompt.prompt) for prompt in self._order.prompts[:256]]
        return sum(lengths) // len(lengths) + self._plan.longest

    def step(self, accumulation: int) -> list[Batch]:
        """The micro-batches of the next optimizer step; makes a rollout where there is none left.

        Raises:
            UserError: see `Make`'s.
        """
        assert accumulation == self._plan.accumulation, "the plan is another one"
        approx_kl, limit = self._watch.read(), self._plan.target_kl
        if self._rollout is None or self._done == self._plan.steps or (limit is not None and approx_kl > limit):
            self._rollout, self._told = self._collected()
            self._done = 0
        batches = self._cut(self._rollout)
        self._done += 1
        return list(batches if self._text is None else self._text.beside(batches))

    def _collected(self) -> tuple[Rollout, dict[str, float]]:
        seed = int(np.random.default_rng([self._seed, self._rollouts, 1]).integers(2**62))
        rollout, told = self._make(self._order.take(self._plan.prompts), seed)
        self._rollouts += 1
        return rollout, {"episode": self._rollouts * self._plan.answers, **told}

    def _cut(self, rollout: Rollout) -> list[RolloutBatch]:
        """The step at which the rollout stands."""
        plan = self._plan
        epoch, number = divmod(self._done, plan.mini_batches)
        dice = np.random.default_rng([self._seed, self._rollouts, 2, epoch])
        groups = dice.permutation(plan.prompts)[:, None] * plan.group  # whole ones: their answers share a prompt
        order = (groups + np.arange(plan.group)).flatten().tolist()
        mine = order[number * plan.per_step : (number + 1) * plan.per_step]
        batches = [
            batch_of(rollout, mine[start : start + plan.micro_batch]) for start in range(0, len(mine), plan.micro_batch)
        ]
        learned = int((rollout.answer_lengths * rollout.learned).sum())
        batches = weighed(batches, plan.aggregation, plan.longest, learned / plan.mini_batches)
        if not self._done:
            batches[0] = replace(batches[0], told=self._told)
        return batches

    # What a checkpoint holds

    def state(self) -> dict[str, Any]:
        """See `BatchStream.state`; the rollout's tensors are told by `tensors`."""
        state: dict[str, Any] = {
            "epoch": self._order.epoch,
            "row": self._order.row,
            "checksum": self._order.checksum(),
            "rollouts": self._rollouts,
            "done": self._done,
            "wheres": list(self._rollout.wheres) if self._rollout else None,
            "watched": list(self._watch.noted()),
            "kl_coef": self._control.coefficient if self._control else None,
        }
        return state | ({"text": self._text.stream.state()} if self._text else {})

    def load_state(self, state: dict[str, Any]) -> None:
        """See `BatchStream.load_state`; `load_tensors` follows.

        Raises:
            UserError: the prompts are not those of the saved run.
        """
        self._order.go_to(state["epoch"], state["row"])
        if self._order.checksum() != state["checksum"]:
            mend = "resume with the same files, tokenizer, seed and max_length"
            raise UserError("the prompts are not those of the saved run", mend=mend)
        self._rollouts, self._done, self._wheres = state["rollouts"], state["done"], state["wheres"]
        self._watch.go_on(*state["watched"])
        if self._control:
            self._control.coefficient = state["kl_coef"]
        if self._text:
            self._text.stream.load_state(state["text"])

    def tensors(self) -> dict[str, Tensor]:
        """The rollout at hand; nothing before the first."""
        return self._rollout.tensors() if self._rollout else {}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """The way back, after `load_state`."""
        self._rollout = Rollout.of_tensors(tensors, self._wheres) if tensors else None
