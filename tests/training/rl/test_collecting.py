"""A rollout is made: engine and trainer agree, groups are groups, whatever ends an answer ends it, seeds decide."""

from dataclasses import replace

import pytest
import torch

from intaglio.adapters.attach import attach
from intaglio.errors import UserError
from intaglio.models.value import ActorCritic
from intaglio.specs.adapter import LoRASpec
from intaglio.training.objectives.actions import Reader
from intaglio.training.rl import collecting
from intaglio.training.rl.collecting import Collector
from intaglio.training.rl.judging import ByCritic, ByGroup, Judge
from intaglio.training.rl.kl_control import FixedKL
from intaglio.training.rl.rewards import FunctionReward, Rewards
from intaglio.training.rollout import Drawing, drawn_answers, laid_out
from intaglio.training.stepping.tricks import recompute_activations
from tiny_rollouts import asked, policy
from toy_llms import toy_tokenizer

TOKENIZER = toy_tokenizer()
PROMPTS = [[7, 3, 11], [40, 41, 42, 43, 44, 45], [5]]
LETTERS = FunctionReward("letters", lambda completions: [float(sum(c.islower() for c in text)) for text in completions])


def collector(judge: Judge, temperature: float = 1.0, **more: object) -> Collector:
    drawing = Drawing(6, temperature, **more)  # type: ignore[arg-type]
    return Collector(TOKENIZER, Rewards([LETTERS], [1.0]), Reader(temperature), judge, drawing, micro_batch=4)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_engine_and_trainer_find_the_same_log_probabilities(temperature: float, softcap: float | None) -> None:
    made = collector(ByGroup(3), temperature)
    rollout, told = made.collect(policy(logit_softcap=softcap), None, asked(*PROMPTS), 3, seed=5)
    assert len(rollout) == 9
    assert told["sampling/sampling_logp_difference/max"] < 1e-4
    assert torch.unique_consecutive(rollout.prompt_lengths).tolist() == [3, 6, 1]
    assert len({tuple(answer.tolist()) for answer in rollout.answers.split(rollout.lengths)}) > 5
    assert told["completions/max_length"] <= 6


def test_the_seed_decides_the_answers() -> None:
    made, model = collector(ByGroup(2)), policy()
    (one, _), (same, _), (other, _) = (made.collect(model, None, asked(*PROMPTS), 2, seed) for seed in (1, 1, 2))
    assert torch.equal(one.answers, same.answers)
    assert torch.equal(one.advantages, same.advantages)
    assert one.answers.tolist() != other.answers.tolist()


def test_weights_that_differ_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "drawn_answers", lambda model, *more: drawn_answers(policy(seed=9), *more))
    made = collector(ByGroup(2))
    with pytest.raises(UserError, match="off the trainer's") as error:
        made.collect(policy(), None, asked(*PROMPTS), 2, seed=1)
    assert error.value.where.startswith("row:")
    made.tolerance = 100.0
    assert made.collect(policy(), None, asked(*PROMPTS), 2, seed=1)[1]["sampling/sampling_logp_difference/max"] > 0.1


def test_a_stop_of_any_kind_is_an_end() -> None:
    """TRL's issue 3750: a stop id of the user's own is no missing end, and its token is the last action."""
    model, plain = policy(), asked(*PROMPTS)
    free, _ = collector(ByGroup(4)).collect(model, None, plain, 4, seed=3)
    answers = [answer.tolist() for answer in free.answers.split(free.lengths)]
    stop = next(answer[2] for answer in answers if len(answer) == 6 and answer[2] not in answer[:2])
    judge = ByCritic(FixedKL(0.0), penalty=100.0)
    made = collector(judge, stop_token_ids=(stop,))
    rollout, told = made.collect(
        ActorCritic(model), lambda batch: Reader().log_probs(model, batch), plain * 4, 1, seed=3
    )
    ends = [answer[-1].item() in (stop, 0, 2) for answer in rollout.answers.split(rollout.lengths)]
    assert 0 < sum(ends) < len(ends)
    assert told["val/num_eos_tokens"] == sum(ends)
    lasts = rollout.answer_lengths.cumsum(dim=0) - 1
    rewards = replace(rollout).returns[lasts]  # gamma 1, and nothing follows: the reward of the last token
    assert [bool(reward < -50) for reward in rewards] == [not end for end in ends]


def test_a_policy_that_is_its_reference_pays_nothing() -> None:
    model = ActorCritic(policy())
    made = collector(ByCritic(FixedKL(0.5)))
    rollout, told = made.collect(model, lambda batch: Reader().log_probs(model, batch), asked(*PROMPTS), 1, seed=3)
    assert told["objective/kl"] == pytest.approx(0, abs=1e-6)
    assert told["objective/rlhf_reward"] == pytest.approx(told["objective/scores"], abs=1e-6)
    assert rollout.advantages.mean().abs() < 1e-5
    assert rollout.advantages.var() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapters_policy_answers_with_it(dtype: torch.dtype) -> None:
    model = policy().to(dtype)
    attach(model, LoRASpec(r=4, lora_alpha=32), seed=1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(0))
    _, told = collector(ByGroup(2)).collect(model, None, asked(*PROMPTS), 2, seed=1)
    assert told["sampling/sampling_logp_difference/max"] < (1e-4 if dtype == torch.float32 else 0.3)
    assert all(p.requires_grad == ("lora" in name) for name, p in model.named_parameters())


def test_what_is_laid_out_follows_the_weights() -> None:
    """In bf16 the engine reads other matrices, made of the weights as they are, for few answers or for many."""
    model = policy().to(torch.bfloat16).train()
    assert laid_out(model, 64) is not model
    fast = laid_out(model)
    assert fast is not model
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        torch.testing.assert_close(fast(ids).float(), model(ids).float(), atol=0.1, rtol=0.05)
        model.get_submodule("layers.0.attention.q_proj").get_parameter("weight").mul_(-2)
        torch.testing.assert_close(laid_out(model)(ids).float(), model(ids).float(), atol=0.1, rtol=0.05)
    assert model.training
    recompute_activations(model, 1)  # what the policy keeps of its forward is no matter of the engine's
    with torch.no_grad():
        torch.testing.assert_close(laid_out(model)(ids).float(), model(ids).float(), atol=0.1, rtol=0.05)
    assert all(weight.requires_grad for weight in model.parameters())
