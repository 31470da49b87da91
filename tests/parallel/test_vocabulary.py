"""Losses over a vocabulary that gloo ranks share, and over tokens that they share: what one process says."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from intaglio.parallel.pieces import place
from intaglio.parallel.vocabulary import WHOLE, CutTokens, Gathered, Spread, Vocabulary, output_matrix
from intaglio.training.objectives.chunked_loss import chunked_cross_entropy
from intaglio.training.objectives.token_logprobs import chunked_log_probs_and_entropies
from parity import CLOSE, whole
from ranks import run_ranks

SIZE, FEATURES = 61, 8
CASES: list[dict[str, Any]] = [
    {"count": 9, "softcap": None, "frozen": False},
    {"count": 9, "softcap": 3.0, "frozen": True},
    {"count": 1, "softcap": None, "frozen": True},
    {"count": 0, "softcap": None, "frozen": False},
]


def losses(head: nn.Linear, hidden: Tensor, targets: Tensor, case: dict[str, Any], share: float) -> list[Tensor]:
    """Values of both kinds of loss and their gradients; of every rank `share` counts."""
    weight, vocabulary = output_matrix(head)
    more = {"chunk": 4, "softcap": case["softcap"], "vocabulary": vocabulary}
    log_probs, entropies = chunked_log_probs_and_entropies(hidden, weight, targets, temperature=0.7, **more)
    nats = chunked_cross_entropy(hidden, weight, targets, z_loss=0.01, **more)
    slopes = torch.linspace(-1, 1, len(targets), dtype=hidden.dtype)
    found = [log_probs, entropies, nats]
    for loss in ((log_probs * slopes).sum(), nats):
        (loss * share).backward(retain_graph=True)
        parameters = [hidden] if case["frozen"] else [hidden, head.weight]
        found += [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        hidden.grad = head.weight.grad = None
    return [whole(x) for x in found]


def rank() -> dict[str, float]:
    """The largest difference of every case, for every way to share."""
    found = {}
    mesh, world = init_device_mesh("cpu", (dist.get_world_size(),)), dist.get_world_size()
    group = mesh.get_group()
    ways: list[tuple[str, Vocabulary]] = [("spread", Spread(SIZE, group)), ("gathered", Gathered(SIZE, group))]
    for case in CASES:
        torch.manual_seed(0)
        head = nn.Linear(FEATURES, SIZE, bias=False, dtype=torch.float64).requires_grad_(not case["frozen"])
        hidden = torch.randn(case["count"], FEATURES, dtype=torch.float64, requires_grad=True)
        targets = torch.randint(SIZE, (case["count"],))
        expected = losses(head, hidden, targets, case, 1)
        for name, vocabulary in ways:
            cut = nn.Linear(FEATURES, SIZE, bias=False)
            cut.weight = nn.Parameter(place(head.weight, mesh, 0), requires_grad=not case["frozen"])
            vars(cut)["vocabulary"] = vocabulary
            found[f"{name}: {case}"] = gap(expected, losses(cut, hidden, targets, case, 1))
        vars(head)["vocabulary"] = shared = type(WHOLE)()
        shared.tokens = CutTokens(group)
        ours = losses(head, hidden, targets, case, 1 / world)
        for gradient in ours[3:]:
            dist.all_reduce(gradient)
        found[f"tokens: {case}"] = gap(expected, ours)
    return found


def gap(expected: list[Tensor], found: list[Tensor]) -> float:
    """The largest of all of them."""
    return max(float((x - y).abs().max()) for x, y in zip(expected, found, strict=True) if x.numel())


@pytest.mark.parametrize("world", [2, 3])
def test_shared_losses_are_those_of_one_process(world: int) -> None:
    """Log probabilities, entropies, cross-entropy with z-loss, and gradients; rows and tokens that do not divide."""
    for gaps in run_ranks(world, rank):
        assert max(gaps.values()) < CLOSE, {key: gap for key, gap in gaps.items() if gap > CLOSE}
