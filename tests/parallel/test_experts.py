"""Experts spread over gloo ranks, and mixtures under plain data parallelism: the same numbers as one process."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from intaglio.models.decoder import Decoder
from intaglio.parallel import experts, tensor
from intaglio.parallel.experts import COPIES, expert_mesh, of_experts, spread_experts
from intaglio.parallel.mesh import BATCHES, build_mesh
from intaglio.specs.parallel import ParallelSpec
from intaglio.training.objectives.language_model import LanguageModel
from parity import CLOSE, batches, made, taught
from ranks import run_ranks
from tiny_specs import GATED, MOE, block, decoder

MIXTURE = decoder(block(feed_forward={**MOE, "shared": GATED, "load_balancing_coef": 0.1}, repeat=2))
COMPARED = ("by loss", "norms", "parameters")


def rank(layouts: list[dict[str, Any]]) -> dict[str, float]:
    """What a model learns on a rank beside what one learns from all batches; no rank sees all experts."""
    found: dict[str, float] = {}
    objective = LanguageModel(chunk=5)
    for fields in layouts:
        layout = ParallelSpec(**fields)
        mesh = build_mesh(layout, "cpu")
        rows = batches(MIXTURE.vocab_size, 3 * layout.dp, (3, 1))
        together = [rows[i : i + layout.dp] for i in range(0, len(rows), layout.dp)]
        place = mesh["dp"].get_local_rank()
        apart = [[some[place]] for some in together]
        over = expert_mesh(mesh, layout)
        model = sharded(mesh, over, layout) if layout.zero else spread(mesh, over, layout)
        everyone, copies = mesh[BATCHES].get_group(), over[COPIES].get_group()
        added = nothing if layout.zero else partial(summed, everyone=everyone, copies=copies)
        targets = [sum(batch.num_targets for batch in some) for some in together]
        lesson = taught(model, objective, apart, targets=targets, joined=added)
        gaps = taught(made(MIXTURE), objective, together).gap(lesson)
        found |= {f"{fields}: {key}": gaps[key] for key in COMPARED}
        held: Any = model.get_parameter("layers.0.feed_forward.experts.up_proj")
        pieces = layout.dp if layout.zero else layout.ep
        assert len(held.to_local() if of_experts(held) else held) * pieces == MOE["num_experts"]
    return found


def spread(mesh: DeviceMesh, over: DeviceMesh, layout: ParallelSpec) -> Decoder:
    """Experts spread, matrices cut."""
    model = made(MIXTURE)
    tensor.parallelize(model, mesh, layout)
    experts.parallelize(model, over, layout)
    return model


def nothing(model: nn.Module) -> None:
    """FSDP2 sums gradients itself."""


def summed(model: nn.Module, everyone: dist.ProcessGroup, copies: dist.ProcessGroup) -> None:
    """Adds gradients over ranks; those of spread experts have all of their tokens' already."""
    for name, parameter in model.named_parameters():
        gradient: Any = parameter.grad
        assert gradient is not None, name
        group = copies if of_experts(parameter) else everyone
        dist.all_reduce(gradient.to_local() if hasattr(gradient, "to_local") else gradient, group=group)


def sharded(mesh: DeviceMesh, over: DeviceMesh, layout: ParallelSpec) -> Decoder:
    """Experts spread, and all of it in shards: theirs among ranks that have the same ones."""
    model = made(MIXTURE)
    experts.parallelize(model, over, layout)
    for part in spread_experts(model):
        fully_shard(part, mesh=over[COPIES])
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"], reshard_after_forward=False)
    register_fsdp_forward_method(model, "hidden_states")
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return model


@pytest.mark.parametrize(
    ("world", "layouts"),
    [
        (2, [{"dp": 2, "ep": 2}, {"dp": 2}]),
        (4, [{"dp": 4, "ep": 2}, {"dp": 2, "ep": 2, "tp": 2}, {"dp": 4, "ep": 2, "zero": 3}]),
    ],
)
def test_spread_experts_learn_what_those_of_one_process_do(world: int, layouts: list[dict[str, Any]]) -> None:
    """Gradients and three steps: experts over all ranks, over some, beside tp; and whole on each of them."""
    for gaps in run_ranks(world, rank, layouts, timeout=400):
        assert max(gaps.values()) < CLOSE, {key: gap for key, gap in gaps.items() if gap > CLOSE}


def test_an_expert_without_a_token_has_a_gradient_of_zero() -> None:
    """Under data parallelism all ranks sum the same gradients, whatever their tokens chose."""
    model = made(MIXTURE)
    model(torch.tensor([[1]])).sum().backward()
    gradient = model.get_parameter("layers.0.feed_forward.experts.up_proj").grad
    assert gradient is not None
    used = gradient.flatten(1).abs().amax(dim=1) > 0
    assert int(used.sum()) == MOE["num_experts_per_tok"]
