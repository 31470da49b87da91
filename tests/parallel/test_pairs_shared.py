"""Preference and reward objectives over gloo ranks that share matrices or sequences: what one process finds."""

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from intaglio.models.heads import SequenceClassifier
from intaglio.parallel import context, tensor
from intaglio.parallel.mesh import build_mesh
from intaglio.specs.parallel import ParallelSpec
from intaglio.training.batching.forks import ForkedBatch, ForkedExample, make_forked
from intaglio.training.objectives.language_model import LanguageModel
from intaglio.training.objectives.objective import Loss
from intaglio.training.objectives.orpo import ORPO, orpo_batches
from intaglio.training.objectives.reward import PairwiseReward
from intaglio.training.stepping.tricks import recompute_activations
from parity import CLOSE, batches, made, whole
from ranks import run_ranks
from tiny_specs import attention, block, decoder

SPEC = decoder(block(attention=attention(num_kv_heads=2, window=4)), block(), tie_embeddings=True)


def pairs() -> ForkedBatch:
    """Two prompts with two answers each, of odd lengths."""
    numbers = np.random.default_rng(0)
    examples = []
    for fork in ((3, 4, 2), (5, 1, 8)):
        scored = np.arange(sum(fork)) >= fork[0]
        examples.append(ForkedExample(numbers.integers(0, 64, sum(fork), dtype=np.int32), scored, "here", fork))
    return make_forked(examples)


class TwoTexts:
    """Two forwards of different lengths before one backward, as PPO's with plain text beside."""

    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        """See `Objective`."""
        objective = LanguageModel(chunk=3)
        first, second = batches(64, 1, (3, 6))[0], batches(64, 1, (4, 1, 2))[0]
        return Loss(objective(model, first).total + 0.5 * objective(model, second).total)


def model_and_loss(kind: str) -> tuple[Any, Any, ForkedBatch]:
    """A decoder or one with a score, its objective, and a batch for it."""
    if kind == "recomputed":
        model = made(SPEC)
        recompute_activations(model, 1)
        return model, TwoTexts(), pairs()
    if kind == "orpo":
        return made(SPEC), ORPO(beta=0.5, chunk=3), orpo_batches([pairs()], "all")[0]
    judge: Any = SequenceClassifier(made(SPEC), 1).double()
    nn.init.normal_(judge.score.weight, generator=torch.Generator().manual_seed(0))
    return judge, PairwiseReward(center=0.1), pairs()


def found(model: nn.Module, objective: Any, batch: ForkedBatch, share: float) -> list[Tensor]:
    """The loss and every gradient there is, by name."""
    loss = objective(model, batch).total
    (loss * share).backward()
    gradients = [whole(p.grad) for _, p in sorted(model.named_parameters()) if p.grad is not None]
    return [whole(loss), *gradients]


def rank(layouts: list[dict[str, Any]]) -> dict[str, float]:
    """The largest difference of each objective under each layout."""
    gaps = {}
    for fields in layouts:
        layout = ParallelSpec(**fields)
        mesh = build_mesh(layout, "cpu")
        for kind in ("orpo", "reward", "recomputed"):
            alone = found(*model_and_loss(kind), 1)
            model, objective, batch = model_and_loss(kind)
            decoder = model.decoder if kind == "reward" else model
            tensor.parallelize(decoder, mesh, layout)
            context.parallelize(decoder, mesh, layout)
            ours = found(model, objective, batch, 1 / layout.cp)
            for gradient in ours[1:]:
                dist.all_reduce(gradient, group=mesh["cp"].get_group())
            gaps[f"{kind}, {fields}"] = max(float((x - y).abs().max()) for x, y in zip(alone, ours, strict=True))
    return gaps


def test_pairs_teach_the_same_on_several_ranks() -> None:
    """Documents that fork, log probabilities of their answers, scores at their ends; layers computed again."""
    for gaps in run_ranks(
        2, rank, [{"tp": 2}, {"tp": 2, "loss_parallel": False, "sequence_parallel": False}, {"cp": 2}]
    ):
        assert max(gaps.values()) < CLOSE, gaps
