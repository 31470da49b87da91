"""Sequences cut over gloo ranks: the same numbers as one process, in float64."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from intaglio.errors import UserError
from intaglio.parallel import context, tensor
from intaglio.parallel.context import GatheredKeys
from intaglio.parallel.mesh import build_mesh
from intaglio.parts.forked import Forked
from intaglio.specs.parallel import ParallelSpec
from intaglio.training.objectives.language_model import LanguageModel
from parity import CLOSE, batches, made, taught
from ranks import run_ranks
from tiny_specs import LATENT, MOE, attention, block, decoder

ANIMALS = {
    "GQA, window, tied": decoder(
        block(attention=attention(num_kv_heads=2)),
        block(attention=attention(num_kv_heads=2, window=3)),
        tie_embeddings=True,
    ),
    "learned positions, mixture": decoder(
        block(
            attention={"num_heads": 4, "qk_norm": {"norm": {"kind": "rms_norm"}}},
            feed_forward={**MOE, "load_balancing_coef": 0.1},
        ),
        positions={"kind": "learned"},
    ),
    "latent": decoder(block(attention=LATENT)),
    "MQA, stretched, few tokens": decoder(
        block(
            attention=attention(
                num_kv_heads=1,
                rope={"scaling": {"kind": "dynamic", "factor": 2.0, "original_max_position_embeddings": 4}},
            )
        )
    ),
}


def rank(layouts: list[tuple[str, dict[str, Any]]]) -> dict[str, float]:
    """What models learn from pieces of sequences beside what one learns from them whole, on a rank."""
    found: dict[str, float] = {}
    objective = LanguageModel(chunk=5, z_loss=1e-3)
    for name, fields in layouts:
        spec, layout = ANIMALS[name], ParallelSpec(**fields)
        mesh, world = build_mesh(layout, "cpu"), layout.cp
        documents = (2, 7) if "few tokens" in name else (7, 1, 11, 4)
        steps = [batches(spec.vocab_size, 3, documents)[i : i + 1] for i in range(3)]
        model = made(spec)
        tensor.parallelize(model, mesh, layout)
        context.parallelize(model, mesh, layout)
        group = mesh["cp"].get_group()
        targets = [world * steps[i][0].num_targets for i in range(3)]
        lesson = taught(model, objective, steps, targets=targets, joined=partial(summed, group=group))
        found |= {
            f"{name}, {fields}: {key}": gap for key, gap in taught(made(spec), objective, steps).gap(lesson).items()
        }
    return found


def summed(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Adds gradients over ranks, as data parallelism does."""
    for parameter in model.parameters():
        gradient: Any = parameter.grad
        dist.all_reduce(gradient.to_local() if hasattr(gradient, "to_local") else gradient, group=group)


TWO = [
    ("GQA, window, tied", {"cp": 2}),
    ("GQA, window, tied", {"cp": 2, "cp_method": "all_gather"}),
    ("learned positions, mixture", {"cp": 2}),
    ("latent", {"cp": 2, "cp_method": "all_gather"}),
]
FOUR = [
    ("latent", {"cp": 4}),
    ("MQA, stretched, few tokens", {"cp": 4, "cp_method": "all_gather"}),
    ("learned positions, mixture", {"cp": 2, "tp": 2}),
    ("GQA, window, tied", {"cp": 2, "tp": 2, "cp_method": "all_gather"}),
]


@pytest.mark.parametrize(("world", "layouts"), [(2, TWO), (4, FOUR)])
def test_pieces_of_sequences_teach_what_whole_ones_do(world: int, layouts: list[tuple[str, dict[str, Any]]]) -> None:
    """Logits, gradients and three steps over packed documents; ragged pieces, one of them empty; tp beside it."""
    for gaps in run_ranks(world, rank, layouts, timeout=400):
        assert max(gaps.values()) < CLOSE, {key: gap for key, gap in gaps.items() if gap > CLOSE}


def refuse() -> str:
    """What all-gather says of documents that fork."""
    inner = Forked([(2, 1, 1)])
    inner.begin(torch.tensor([[0, 1, 2, 2]]))
    group: Any = dist.group.WORLD
    with pytest.raises(UserError) as refused:
        GatheredKeys(inner, group)
    return str(refused.value)


def test_all_gather_reads_plain_documents_alone() -> None:
    assert "forked" in run_ranks(1, refuse)[0]
