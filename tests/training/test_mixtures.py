"""What is told of mixtures of experts: held against counts by hand, whole or in micro-batches."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from intaglio.data.examples import Example
from intaglio.data.store import InMemory
from intaglio.models.decoder import Decoder
from intaglio.parts.moe import MixtureOfExperts, Router
from intaglio.training.batching.batches import Batch, BatchStream, make_batch
from intaglio.training.log import Log
from intaglio.training.loop import Loop, evaluate
from intaglio.training.objectives.language_model import LanguageModel
from intaglio.training.objectives.mixtures import ExpertUse, joined_use
from intaglio.training.stepping.master import MasterWeights
from intaglio.training.stepping.optimizer import OptimizerSpec, build_optimizers
from intaglio.training.stepping.schedule import ScheduleSpec
from tiny_specs import EXPERT, GATED, block, decoder

MOE = {"kind": "moe", "num_experts": 4, "num_experts_per_tok": 2, "expert": EXPERT, "load_balancing_coef": 0.1}
SPEC = decoder(block(feed_forward=GATED), block(feed_forward=MOE), block(feed_forward={**MOE, "num_experts": 6}))


def rows(count: int = 6) -> list[Example]:
    dice = np.random.default_rng(0)
    lengths = dice.integers(4, 16, count)
    return [Example(dice.integers(0, 64, n).astype(np.int32), np.arange(n) > 1, f"r:{n}") for n in lengths]


def model() -> Decoder:
    torch.manual_seed(0)
    return Decoder(SPEC)


def loop_of(model: Decoder, micro_batch: int, accumulation: int) -> Loop:
    masters = MasterWeights(model, torch.float32)
    optimizers = build_optimizers(OptimizerSpec(), masters.masters)
    stream = BatchStream(InMemory(rows()), micro_batch, 16, "none")
    return Loop(model, masters, LanguageModel(), stream, optimizers, ScheduleSpec(), steps=9, accumulation=accumulation)


def counted_by_hand(model: Decoder, batch: Batch) -> list[tuple[float, list[float]]]:
    """Balance and shares of each mixture, from what its router is seen to get, one token at a time."""
    seen: list[torch.Tensor] = []
    routers = [layer.router for layer in model.modules() if isinstance(layer, MixtureOfExperts)]
    handles = [
        router.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach())) for router in routers
    ]
    LanguageModel()(model, batch)
    for handle in handles:
        handle.remove()
    return [_by_hand(router, tokens) for router, tokens in zip(routers, seen, strict=True)]


def _by_hand(router: Router, tokens: torch.Tensor) -> tuple[float, list[float]]:
    experts = len(router.weight)
    counts, mass = [0] * experts, [0.0] * experts
    for token in tokens:
        probabilities = (router.weight @ token).softmax(dim=0).tolist()
        for expert in sorted(range(experts), key=lambda i: -probabilities[i])[:2]:
            counts[expert] += 1
        mass = [a + b for a, b in zip(mass, probabilities, strict=True)]
    shares = [count / (2 * len(tokens)) for count in counts]
    balance = experts * sum(f * p / len(tokens) for f, p in zip(shares, mass, strict=True))
    return balance, shares


def test_a_step_says_how_experts_were_used(tmp_path: Path) -> None:
    one = model()
    expected = counted_by_hand(one, BatchStream(InMemory(rows()), 6, 16, "none").step(1)[0])
    step = loop_of(one, 6, 1).step()
    with Log(tmp_path / "log.jsonl", 1, 1, 1, 1, quiet=True) as log:
        log.step(step)
    (line,) = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert line["balance"] == pytest.approx([balance for balance, _ in expected], rel=1e-5)
    assert [len(shares) for shares in line["expert_shares"]] == [4, 6]
    for shares, (_, by_hand) in zip(line["expert_shares"], expected, strict=True):
        assert shares == pytest.approx(by_hand)
        assert sum(shares) == pytest.approx(1)
    assert line["extra"] == pytest.approx(0.1 * sum(line["balance"]) / 2, rel=1e-5)


def test_shares_are_of_all_the_tokens_of_a_step() -> None:
    whole, split = loop_of(model(), 6, 1).step(), loop_of(model(), 2, 3).step()
    for one, other in zip(whole.experts, split.experts, strict=True):
        assert other.shares == pytest.approx(one.shares)
    assert split.extra == pytest.approx(0.1 * sum(use.balance for use in split.experts) / 2, rel=1e-5)


def test_joined_by_hand() -> None:
    parts = [[ExpertUse(1.0, (0.5, 0.5))], [ExpertUse(2.0, (1.0, 0.0))]]
    (joined,) = joined_use(parts, targets=[3, 1], tokens=[2, 6])
    assert joined.balance == pytest.approx(1.25)
    assert joined.shares == pytest.approx((0.875, 0.125))


def test_a_fresh_mixture_can_be_measured() -> None:
    """Routers remember for the backward alone: before the first step there is nothing to balance."""
    assert evaluate(model(), LanguageModel(), [make_batch(rows())]).loss > 0


def test_dense_models_say_nothing() -> None:
    torch.manual_seed(0)
    assert loop_of(Decoder(decoder()), 2, 1).step().experts == ()
