"""Rollouts as micro-batches: what each target is, what it counts, and that nothing depends on how they are cut."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from intaglio.models.value import ActorCritic
from intaglio.parts.context import positions_of
from intaglio.training.objectives.actions import Reader
from intaglio.training.objectives.grpo import GRPO
from intaglio.training.objectives.policy_loss import Aggregation
from intaglio.training.objectives.ppo import PPO
from intaglio.training.objectives.watch import Watch
from intaglio.training.rl.rollouts import Rollout, RolloutBatch, batch_of, weighed
from tiny_rollouts import policy, recorded_rollout

LONGEST = 8


def test_a_target_is_told_by_the_place_before_it() -> None:
    rollout = recorded_rollout(lengths=(3, 1))
    batch = batch_of(rollout, [1, 0])
    prompts, answers = rollout.prompts.split([2, 3]), rollout.answers.split([3, 1])
    assert batch.ids[0].tolist() == [
        *prompts[1].tolist(),
        *answers[1].tolist(),
        *prompts[0].tolist(),
        *answers[0].tolist(),
    ]
    assert batch.positions[0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert (
        batch.ids[0][batch.places + 1].tolist()
        == batch.targets.tolist()
        == [*answers[1].tolist(), *answers[0].tolist()]
    )
    torch.testing.assert_close(batch.advantages, rollout.advantages[[3, 0, 1, 2]])


def test_answers_beside_each_other_share_their_prompt() -> None:
    """And each is told as in a document of its own."""
    apart = recorded_rollout(lengths=(3, 4, 2))
    prompt = apart.prompts[:2]
    rollout = replace(apart, prompts=prompt.repeat(3), prompt_lengths=torch.tensor([2, 2, 2], dtype=torch.int32))
    batch = batch_of(rollout, [1, 0, 2])
    assert batch.forks == [(2, 4, 3, 2)]
    assert (batch.documents, batch.lengths) == ([11], [4, 3, 2])
    together = Reader().log_probs(policy(), batch)
    alone = [Reader().log_probs(policy(), batch_of(rollout, [i])) for i in (1, 0, 2)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=0)


def test_an_answer_that_is_left_out_has_no_targets() -> None:
    rollout = replace(recorded_rollout(lengths=(2, 6)), learned=torch.tensor([True, False]))
    batch = batch_of(rollout, [0, 1])
    assert (batch.num_targets, batch.lengths) == (2, [2, 0])
    assert len(batch.advantages) == 2
    assert len(batch.documents) == 2


def test_a_rollout_is_its_tensors() -> None:
    rollout = recorded_rollout()
    again = Rollout.of_tensors(rollout.tensors(), rollout.wheres)
    assert all(torch.equal(again.tensors()[name], tensor) for name, tensor in rollout.tensors().items())


def trls(losses: Tensor, mask: Tensor, how: Aggregation, all_tokens: float) -> Tensor:
    """What TRL makes of the losses of one optimizer step on padded rows (B, T)."""
    if how == "grpo":
        return ((losses * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()
    if how == "dr_grpo":
        return (losses * mask).sum() / (len(losses) * LONGEST)
    return (losses * mask).sum() / (mask.sum().clamp(min=1.0) if how == "bnpo" else all_tokens)


@pytest.mark.parametrize("how", ["grpo", "bnpo", "dr_grpo", "dapo"])
@pytest.mark.parametrize("cuts", [[0, 4], [0, 1, 4], [0, 1, 2, 3, 4]])
def test_tokens_weigh_what_trl_says_however_a_step_is_cut(how: Aggregation, cuts: list[int]) -> None:
    rollout = replace(recorded_rollout(), learned=torch.tensor([True, True, False, True]))
    batches = [batch_of(rollout, range(*pair)) for pair in pairwise(cuts)]
    weights = weighed(batches, how, LONGEST, rollout_share=9.0)
    targets = sum(batch.num_targets for batch in batches)
    ours = sum((batch.weights * batch.advantages).sum() for batch in weights) / targets
    mask = torch.arange(5) < torch.tensor([3, 1, 0, 2])[:, None]
    losses = torch.zeros(4, 5).masked_scatter(torch.arange(5) < torch.tensor([3, 1, 5, 2])[:, None], rollout.advantages)
    torch.testing.assert_close(ours, trls(losses, mask.float(), how, 9.0))


def test_tokens_that_are_masked_are_in_no_denominator() -> None:
    """TRL's issue 6369: answers of 2 tokens and of 6 that were cut off, a loss of 1 each: 2 / 2, not 2 / 8."""
    rollout = replace(recorded_rollout(lengths=(2, 6)), learned=torch.tensor([True, False]))
    (batch,) = weighed([batch_of(rollout, [0, 1])], "dapo", LONGEST, rollout_share=2.0)
    assert float(batch.weights.sum() / batch.num_targets) == 1.0
    (nothing,) = weighed(
        [batch_of(replace(rollout, learned=torch.tensor([False, False])), [0, 1])], "dapo", LONGEST, rollout_share=0.0
    )
    found = GRPO(Reader(), Watch())(policy(), nothing)
    assert found.total.item() == 0.0
    found.total.backward()


def padded_log_probs(model: torch.nn.Module, rollout: Rollout, side: str, padding: int, pad: int) -> Tensor:
    """As others compute them: rows filled up with `pad`, told by a mask, all logits whole."""
    rows = [
        torch.cat(pair).long()
        for pair in zip(
            rollout.prompts.split(rollout.prompt_lengths.tolist()), rollout.answers.split(rollout.lengths), strict=True
        )
    ]
    width = max(map(len, rows)) + padding
    found = []
    for row, count in zip(rows, rollout.lengths, strict=True):
        filler = torch.full((width - len(row),), pad)
        mask = torch.cat([torch.ones(len(row)), torch.zeros(len(filler))]).long()
        ids = torch.cat([row, filler] if side == "right" else [filler, row])
        mask = mask if side == "right" else mask.flip(0)
        logits = model(ids[None], positions_of(mask[None]))[0]
        end = len(row) if side == "right" else width
        told = logits[end - count - 1 : end - 1].log_softmax(-1)
        found.append(told.gather(-1, ids[end - count : end, None])[:, 0])
    return torch.cat(found)


@pytest.mark.parametrize("pad", [0, 2])  # both of them end texts
@pytest.mark.parametrize("side", ["left", "right"])
def test_no_padding_of_any_kind_changes_a_log_probability(side: str, pad: int) -> None:
    model, rollout = policy(), recorded_rollout()
    ours = Reader().log_probs(model, batch_of(rollout, range(4)))
    for padding in (0, 3):
        theirs = padded_log_probs(model, rollout, side, padding, pad)
        torch.testing.assert_close(ours, theirs.detach(), atol=1e-5, rtol=0)


def gradient(objective: object, model: torch.nn.Module, batches: list[RolloutBatch]) -> tuple[float, list[Tensor]]:
    """As the loop has it: sums over the step's targets."""
    model.zero_grad()
    targets, loss = sum(batch.num_targets for batch in batches), 0.0
    for batch in batches:
        part = objective(model, batch).total / targets  # type: ignore[operator]
        part.backward()
        loss += part.item()
    return loss, [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("kind", ["ppo", "grpo", "sequence"])
def test_one_step_is_the_same_however_it_is_cut(kind: str) -> None:
    model: torch.nn.Module = policy()
    if kind == "ppo":
        model = ActorCritic(model)  # type: ignore[arg-type]
        objective: object = PPO(Reader(0.7, 3), Watch())
    else:
        objective = GRPO(Reader(1.0, 3), Watch(), beta=0.1, ratio_of="token" if kind == "grpo" else "sequence")
    rollout = recorded_rollout()
    whole, parts = ([batch_of(rollout, range(*pair)) for pair in pairwise(cuts)] for cuts in ([0, 4], [0, 1, 2, 3, 4]))
    how: Aggregation = "bnpo" if kind == "ppo" else "grpo"
    (loss, gradients), (again, others) = (
        gradient(objective, model, weighed(one, how, LONGEST, 11.0)) for one in (whole, parts)
    )
    assert loss == pytest.approx(again, abs=1e-6)
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
