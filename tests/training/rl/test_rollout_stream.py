"""How rollouts follow each other: prompts in turn, mini-batches, epochs, an early stop, and what a checkpoint holds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from intaglio.data.examples import Example
from intaglio.data.mixture import Mixture
from intaglio.data.preference_encoding import PromptExample
from intaglio.data.store import InMemory
from intaglio.errors import UserError
from intaglio.specs import validate
from intaglio.training.objectives.specs import ObjectiveSpec
from intaglio.training.objectives.watch import Watch
from intaglio.training.recipe import Recipe
from intaglio.training.rl.kl_control import AdaptiveKL
from intaglio.training.rl.rollout_stream import Plan, PromptOrder, RolloutStream
from intaglio.training.rl.rollouts import Rollout, RolloutBatch, flat_rollout
from tiny_rollouts import asked

PLAN = Plan(micro_batch=2, accumulation=2, mini_batches=2, epochs=2, group=2, longest=4)


def order(count: int, seed: int = 0) -> PromptOrder:
    prompts = asked(*([10 + row] for row in range(count)))
    store = InMemory([Example(p.prompt, np.zeros(1, dtype=np.bool_), p.where) for p in prompts])
    return PromptOrder(Mixture.of(store), {prompt.where: prompt for prompt in prompts}, seed)


class Made:
    """Makes rollouts whose answers are their own numbers, and remembers what for."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], int]] = []

    def __call__(self, prompts: Sequence[PromptExample], seed: int) -> tuple[Rollout, dict[str, float]]:
        self.calls.append(([int(prompt.prompt[0]) for prompt in prompts], seed))
        every = [prompt for prompt in prompts for _ in range(PLAN.group)]
        answers = [[100 + number] for number in range(len(every))]
        rollout = flat_rollout([p.prompt.tolist() for p in every], answers, [p.where for p in every])
        numbers = torch.arange(float(len(every)))
        return replace(rollout, log_probs=numbers, advantages=numbers.clone()), {"reward": 0.5}


def stream(plan: Plan = PLAN, count: int = 6, **more: Any) -> tuple[RolloutStream, Made, Watch]:
    made, watch = Made(), Watch()
    return RolloutStream(order(count), plan, made, watch, **more), made, watch


def answers(batches: Sequence[Any]) -> list[int]:
    assert all(isinstance(batch, RolloutBatch) for batch in batches)
    return [int(token) for batch in batches for token in batch.targets]


def test_a_rollout_is_learned_from_so_often_and_every_answer_once_an_epoch() -> None:
    made_by, made, _ = stream()
    steps = [made_by.step(2) for _ in range(PLAN.steps)]
    assert len(made.calls) == 1
    assert [len(step) for step in steps] == [2] * 4
    for epoch in (steps[:2], steps[2:]):
        assert sorted(answers(epoch[0]) + answers(epoch[1])) == [*range(100, 108)]
    assert answers(steps[0]) + answers(steps[1]) != answers(steps[2]) + answers(steps[3])
    told = [batch.told for step in steps for batch in step]  # type: ignore[attr-defined]
    assert told == [{"episode": 8, "reward": 0.5}] + [{}] * 7
    made_by.step(2)
    assert len(made.calls) == 2
    assert made.calls[0][1] != made.calls[1][1]


def test_answers_of_a_group_stand_together_and_share_their_prompt() -> None:
    made_by, _, _ = stream()
    assert all(batch.forks == [(1, 1, 1)] for batch in made_by.step(2))  # type: ignore[attr-defined]


def test_prompts_come_in_turn_each_epoch_in_another_order() -> None:
    made_by, made, _ = stream()
    for _ in range(PLAN.steps * 3):
        made_by.step(2)
    asked_for = [prompt for prompts, _ in made.calls for prompt in prompts]
    assert sorted(asked_for[:6]) == sorted(asked_for[6:]) == [*range(10, 16)]
    assert asked_for[:6] != asked_for[6:]
    assert made_by.epoch == 1
    assert made_by.num_rows == 6 * 2 * 2


def test_a_policy_that_has_gone_too_far_leaves_the_rest_of_a_rollout() -> None:
    made_by, made, watch = stream(replace(PLAN, target_kl=0.1))
    made_by.step(2)
    watch.note(torch.tensor([0.05, 0.1]))
    made_by.step(2)
    assert len(made.calls) == 1
    watch.note(torch.tensor([0.3, 0.1]))
    made_by.step(2)
    assert len(made.calls) == 2


def test_a_stream_goes_on_from_what_a_checkpoint_holds() -> None:
    made_by, _, watch = stream(replace(PLAN, target_kl=0.1), control=AdaptiveKL(0.2, 6.0))
    for _ in range(6):
        made_by.step(2)
    watch.note(torch.tensor([0.3]))
    control = AdaptiveKL(0.7, 6.0)
    other, made, _ = stream(replace(PLAN, target_kl=0.1), control=control)
    other.load_state(made_by.state())
    other.load_tensors(made_by.tensors())
    assert control.coefficient == 0.2
    assert [answers(other.step(2)) for _ in range(5)] == [answers(made_by.step(2)) for _ in range(5)]
    assert len(made.calls) == 2  # what was watched had gone too far
    with pytest.raises(UserError, match="not those of the saved run"):
        stream(count=7)[0].load_state(made_by.state())


GIVEN = {"model": "m", "data": "d", "steps": 1, "max_length": 64, "micro_batch": 8}
REWARDS = {"rewards": [{"function": "arithmetic"}], "max_completion_length": 16}


@pytest.mark.parametrize(
    ("objective", "recipe", "message"),
    [
        ({"kind": "grpo", "num_generations": 3}, {}, "no whole number of groups of 3"),
        ({"kind": "grpo", "max_completion_length": 64}, {}, "leaves no room for a prompt"),
        ({"kind": "ppo", "rewards": []}, {}, "at least 1 item"),
        ({"kind": "ppo", "rewards": [{"function": "a", "model": "b"}]}, {}, "one of function, model and pattern"),
        ({"kind": "ppo", "value": "shared", "value_from": "x"}, {}, "value_from is of a critic of its own"),
        ({"kind": "ppo"}, {"packing": "none"}, "packing means nothing to objective ppo"),
        ({"kind": "grpo"}, {"neftune": 5}, "neftune means nothing to objective grpo"),
    ],
)
def test_what_makes_no_sense_is_refused(objective: dict[str, Any], recipe: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        validate(Recipe, {**GIVEN, **recipe, "objective": {**REWARDS, **objective}}, "recipe")


def test_an_objective_survives_being_written() -> None:
    for kind in ("ppo", "grpo"):
        spec = validate(ObjectiveSpec, {"kind": kind, **REWARDS})
        assert validate(ObjectiveSpec, spec.plain()) == spec
