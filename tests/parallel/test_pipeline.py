"""Pipelines: every schedule, and what a pipeline is put together with, steps as one process does."""

from typing import get_args

import pytest
import torch
import torch.distributed as dist

from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.parallel.stages import split
from intaglio.specs import DecoderSpec
from intaglio.specs.parallel import ParallelSpec, Schedule
from parity import CLOSE
from ranks import run_ranks
from staged import Case, Learnt, alone, staged
from tiny_specs import MOE, attention, block, decoder

SCHEDULES = get_args(Schedule)

PLAIN = decoder(block(repeat=8, attention=attention(num_kv_heads=2)), logit_softcap=30.0)
TIED = decoder(
    block(repeat=4, attention=attention(rope=None)),
    positions={"kind": "learned"},
    tie_embeddings=True,
    embedding_scale=5.5,
)
MIXED = decoder(
    block(repeat=2), block(repeat=2, feed_forward={**MOE, "load_balancing_coef": 0.5}), block(), block(feed_forward=MOE)
)


def layout(schedule: str = "1f1b", ranks: int = 2, **fields: int) -> ParallelSpec:
    """A pipeline."""
    return ParallelSpec.model_validate({"pp": {"ranks": ranks, "schedule": schedule}, **fields})


def _all(cases: list[tuple[Case, ParallelSpec, Learnt]]) -> list[tuple[float, list[str]]]:
    return [staged(*case) for case in cases]


def check(world: int, *cases: tuple[Case, ParallelSpec]) -> None:
    """Each of them in turn, in the same processes."""
    expected = {case: alone(case) for case, _ in cases}
    found = run_ranks(world, _all, [(case, layout, expected[case]) for case, layout in cases], timeout=600)
    for number, (case, spec) in enumerate(cases):
        gaps = [rank[number][0] for rank in found]
        near = CLOSE if case.dtype == torch.float64 else 2e-2
        assert max(gaps) < near, f"{spec}: {gaps}"
        places = spec.world // spec.pp.ranks
        answered = [name for rank in found[::places] for name in rank[number][1]]
        assert sorted(answered) == sorted(expected[case].parameters), f"{spec}: each parameter once"


def test_every_schedule() -> None:
    """Of five micro-batches, which are no whole rounds, or of as many as the schedule needs."""
    counts = [8 if schedule == "dual_pipe_v" else 5 for schedule in SCHEDULES]
    cases = [Case(PLAIN, count) for count in counts]
    check(4, *zip(cases, (layout(schedule, ranks=4) for schedule in SCHEDULES), strict=True))


def test_what_stages_may_hold() -> None:
    """Tied embeddings on two ranks and on one, experts in some stages, adapters, a head, weights in bf16."""
    check(
        2,
        (Case(TIED, micro_batches=3), layout("1f1b")),
        (Case(TIED, micro_batches=3), layout("zbv_zero_bubble")),
        (Case(MIXED, micro_batches=4), layout("interleaved_zero_bubble")),
        (Case(PLAIN, micro_batches=2, lora=3), layout("zbv_zero_bubble")),
        (Case(PLAIN, micro_batches=2, reward=True), layout("gpipe")),
        (Case(PLAIN, micro_batches=2, steps=1, dtype=torch.bfloat16), layout("interleaved_zero_bubble")),
    )


def test_replicas_and_pieces_of_pipelines() -> None:
    check(
        4,
        (Case(PLAIN, micro_batches=4), layout("1f1b", dp=2)),
        (Case(PLAIN, micro_batches=4), layout("zbv_zero_bubble", dp=2, zero=1)),
        (Case(TIED, micro_batches=4), layout("1f1b", dp=2, zero=1)),
        (Case(PLAIN, micro_batches=2), layout("interleaved_zero_bubble", tp=2)),
    )


def test_three_dimensions() -> None:
    check(8, (Case(TIED, micro_batches=4, steps=2), layout("1f1b", dp=2, tp=2, zero=1)))


def _refused() -> list[str]:
    case, said = Case(TIED, micro_batches=1), []
    for spec in (layout("1f1b"), layout("zbv_zero_bubble")):
        with pytest.raises(UserError) as caught:
            staged(case, spec.updated(zero=int(spec.pp.schedule != "1f1b")), Learnt())
        said.append(str(caught.value))
    return said


def test_what_cannot_be_is_refused() -> None:
    few, twice = run_ranks(2, _refused)[0]
    assert few.startswith("1 micro-batches for 1f1b over 2 ranks, which needs 2 or more")
    assert twice.startswith("parallel.pp: zbv_zero_bubble has the first and the last stage on one rank")
    assert not dist.is_initialized()
    with pytest.raises(UserError, match="5 stages, and the model has 4 layers"):
        split(Decoder(TIED), 5)


def test_stages_are_the_model_cut() -> None:
    spec: DecoderSpec = PLAIN
    model = Decoder(spec)
    parts = [dict(part.named_parameters()) for part in split(model, 3)]
    assert [len({name.split(".")[1] for name in part if name.startswith("layers.")}) for part in parts] == [3, 3, 2]
    named = dict(model.named_parameters())
    assert sorted(name for part in parts for name in part) == sorted(named)
    assert all(p is named[name] for part in parts for name, p in part.items())
