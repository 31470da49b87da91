"""The engine's trace: beside the plan, beside a step on real tensors, and beside real ranks.

`pytest -rP` shows each configuration with its signed error. Every eighth of them, from the fifth on, runs with every
test, the others with `make prove`.
"""

from dataclasses import asdict
from typing import Any

import pytest
from torch.distributed.tensor import DTensor

from intaglio.errors import UserError
from intaglio.planning.jobs import JobSpec
from intaglio.planning.rank_plan import RankPlan, plan_rank
from intaglio.planning.shards import Rank
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.parallel import ParallelSpec
from intaglio.training.memory.rehearsal import Rehearsal
from intaglio.training.memory.trace import Trace, cut_to, depths_of, trace_job
from intaglio.training.processes.ranks import ALONE
from intaglio.training.processes.together import Together
from measured_memory import allocated
from ranks import run_ranks
from tiny_specs import attention, block, decoder
from traced_configurations import CONFIGURATIONS, Configuration

KNOWN = {"deepseek-v2-lite": (-0.0557, "attention that is written out, whose backward has scores of 4 bytes twice")}
"""What is understood and not counted: latent attention has no fused kernel on a CPU; it has one on a GPU."""


def error_of(plan: RankPlan, trace: Trace) -> float:
    """Signed: above 0 the plan says too much."""
    return plan.peak_bytes / trace.peak_bytes - 1


def worst(one: Configuration) -> tuple[RankPlan, Trace]:
    """The rank of a pipeline whose trace takes most, and its plan."""
    spec, job, layout = one.spec, one.job, one.parallel
    traces = [trace_job(spec, job, layout, stage) for stage in range(layout.pp.ranks)]
    stage = max(range(len(traces)), key=lambda stage: traces[stage].peak_bytes)
    return plan_rank(spec, job, layout, Rank(pp=stage), cpu=True, native=False), traces[stage]


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(one, id=one.name, marks=[] if number % 8 == 4 else [pytest.mark.prove])
        for number, one in enumerate(CONFIGURATIONS)
    ],
)
def test_the_peak_is_what_the_engine_takes(one: Configuration) -> None:
    plan, trace = worst(one)
    error, (known, why) = error_of(plan, trace), KNOWN.get(one.model, (0.0, ""))
    print(f"{one.name}: {error:+.2%}{f', known: {why}' if why else ''}")
    assert abs(error - known) < (0.002 if why else 0.03)
    states = {
        "weights": plan.states.weights + plan.states.adapters,
        "masters": plan.states.master_weights,
        "gradients": plan.states.gradients,
        "optimizer_states": plan.states.optimizer_states,
    }
    assert trace.states == states


def test_the_list_is_as_long_as_it_was_promised_to_be() -> None:
    assert len({one.name for one in CONFIGURATIONS}) == 45


WIDE = decoder(
    {**block(attention=attention(num_kv_heads=2), feed_forward={"intermediate_size": 96, "gated": True}), "repeat": 3},
    hidden_size=64,
    vocab_size=512,
    max_position_embeddings=2048,
)
JOBS = {
    "fp32": JobSpec(dtype="float32", sequence=128, micro_batch=2, chunk=64),
    "bf16": JobSpec(sequence=512, micro_batch=2, chunk=64, accumulation=2, checkpointing=1),
    "LoRA": JobSpec(sequence=512, adapter=LoRASpec(r=4), chunk=64),
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_tensors_without_memory_take_what_real_ones_do(job: JobSpec) -> None:
    trace, real = trace_job(WIDE, job), Rehearsal(WIDE, job, ALONE)
    measured = real.measure()
    assert {name: one.num_bytes for name, one in trace.moments.items()} == {
        name: one.num_bytes for name, one in measured.moments.items()
    }
    assert trace.states == asdict(measured.states)
    seen = allocated(real.loop.step) + sum(trace.states.values())
    assert trace.peak_bytes == pytest.approx(seen, rel=0.01)  # kernels have a little of their own; batches are known


SHARDED = JobSpec(sequence=256, micro_batch=2, chunk=64)


LAYOUTS = (ParallelSpec(dp=2, zero=3), ParallelSpec(tp=2), ParallelSpec(cp=2, zero=3))


def taken_among_others() -> list[tuple[int, dict[str, int]]]:
    """On a real rank: the peak and what stays, of each layout."""
    found = [Rehearsal(WIDE, SHARDED, Together(layout, "cpu")).measure() for layout in LAYOUTS]
    return [(max(one.num_bytes for one in each.moments.values()), asdict(each.states)) for each in found]


def test_a_rank_alone_takes_what_it_does_among_others() -> None:
    traces = [trace_job(WIDE, SHARDED, layout) for layout in LAYOUTS]
    for rank in run_ranks(2, taken_among_others):
        assert rank == [(trace.peak_bytes, trace.states) for trace in traces]


LOCAL = {**attention(num_kv_heads=2), "window": 64}
DEPTHS = {
    "one kind": [{**block(attention=attention(num_kv_heads=2)), "repeat": 7}],
    "in turns": [{"repeat": 3, "pattern": [{**block(attention=LOCAL), "repeat": 2}, block()]}, block(attention=LOCAL)],
    "another first": [block(feed_forward={"intermediate_size": 200}), {**block(), "repeat": 7}],
}


@pytest.mark.parametrize(
    ("layers", "job", "layout"),
    [
        ("one kind", SHARDED, {"dp": 4, "zero": 3}),
        ("in turns", SHARDED, {}),
        pytest.param("another first", SHARDED, {}, marks=pytest.mark.prove),
    ],
)
def test_two_depths_tell_of_the_whole(
    layers: str, job: JobSpec, layout: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = decoder(*DEPTHS[layers], hidden_size=64, vocab_size=128, max_position_embeddings=2048)
    parallel = ParallelSpec.model_validate(layout)
    followed = trace_job(spec, job, parallel)
    assert followed.extrapolated
    assert len(followed.depths) == 2
    monkeypatch.setattr("intaglio.training.memory.trace.SHALLOW", 100)
    whole = trace_job(spec, job, parallel)
    assert whole.depths == (spec.num_layers,)
    assert followed.peak == whole.peak
    assert followed.peak_bytes == pytest.approx(whole.peak_bytes, rel=1e-3)
    assert followed.states == whole.states


def test_depths_differ_by_whole_turns() -> None:
    cycle, last = DEPTHS["in turns"]
    spec = decoder({**cycle, "repeat": 7}, last)
    assert depths_of(spec, JobSpec(), ParallelSpec()) == (4, 7)
    assert depths_of(spec, JobSpec(checkpointing=2), ParallelSpec()) == (10, 16)
    assert depths_of(spec, JobSpec(), ParallelSpec(pp={"ranks": 2})) == (22,)
    assert depths_of(decoder(*DEPTHS["another first"]), JobSpec(), ParallelSpec()) == (3, 5)
    assert cut_to(spec, 4).blocks == spec.blocks[:4]


def test_pieces_compute_in_what_they_say() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from intaglio.training.memory.imagined import imagined_ranks

    with imagined_ranks(ParallelSpec(tp=2)) as ranks, FakeTensorMode(allow_non_fake_inputs=True):
        model = Rehearsal(WIDE, SHARDED, ranks).model
        pieces = [one for one in model.parameters() if isinstance(one, DTensor)]
        assert pieces
        assert {str(piece.to_local().dtype) for piece in pieces} == {"torch.bfloat16"}


REFUSED = {
    "dpo needs answers": ({"job": "dpo"}, {}),
    "float16 trains on a GPU": ({"dtype": "float16"}, {}),
    "never all": ({"chunk": None}, {}),
    "sees one memory": ({}, {"dp": 2, "zero": 3, "offload": True}),
    "fake tensors have none": ({}, {"dp": 2, "ep": 2}),
    "does not divide": ({}, {"tp": 3}),
}


@pytest.mark.parametrize(("said", "job", "layout"), [(said, *both) for said, both in REFUSED.items()])
def test_what_cannot_be_traced(said: str, job: dict[str, Any], layout: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=said):
        trace_job(WIDE, JobSpec(**{"sequence": 64, **job}), ParallelSpec.model_validate(layout))
