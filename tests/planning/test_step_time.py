"""Step times: what is computed agrees with the specs' own FLOPs, what is sent with arithmetic by hand."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from intaglio.lineage import preset
from intaglio.planning.devices import find_device
from intaglio.planning.jobs import JobSpec
from intaglio.planning.schedules import schedule
from intaglio.planning.simulation import simulate
from intaglio.planning.speeds import EAGER, Execution, assumptions
from intaglio.planning.step_time import StepTime, Timer, step_time
from intaglio.planning.traffic import Group, Wires
from intaglio.planning.work import causal_context, layer_work
from intaglio.specs import DecoderSpec
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.parallel import ParallelSpec
from intaglio.specs.quantization import QuantizationSpec

H100 = find_device("h100")
SMALL = DecoderSpec.model_validate(
    {
        "vocab_size": 32000,
        "hidden_size": 2048,
        "max_position_embeddings": 65536,
        "layers": [
            {
                "repeat": 8,
                "norm": {"kind": "rms_norm"},
                "attention": {"num_heads": 16, "num_kv_heads": 8, "rope": {}},
                "feed_forward": {"intermediate_size": 8192, "activation": "silu", "gated": True},
            }
        ],
    }
)


def timed(layout: dict[str, Any] | None = None, spec: DecoderSpec = SMALL, how: Any = None, **job: Any) -> StepTime:
    """A step of pretraining, 8,192 tokens at a time."""
    wanted = JobSpec.model_validate({"job": "pretrain", "sequence": 4096, "micro_batch": 2, **job})
    return step_time(spec, wanted, ParallelSpec.model_validate(layout or {}), H100, how or Execution())


@pytest.mark.parametrize("name", ["gpt2-xl", "llama3-8b", "mixtral-8x7b", "deepseek-v2-lite", "gemma2-9b"])
def test_products_and_scores_are_those_of_the_spec(name: str) -> None:
    spec = preset(name).spec
    assert isinstance(spec, DecoderSpec)
    for block in dict.fromkeys(spec.blocks):
        work = layer_work(block, spec.hidden_size, 3.0, 1)
        assert sum(one.flops for one in work.products) == 3 * block.flops_per_token(spec.hidden_size, 0)
        assert work.scores == 3 * block.attention.score_flops(1)  # one token sees itself


@pytest.mark.parametrize(("sequence", "window"), [(1, None), (7, None), (7, 3), (7, 7), (5, 9)])
def test_what_a_causal_mask_leaves(sequence: int, window: int | None) -> None:
    seen = [min(place + 1, window or sequence) for place in range(sequence)]
    assert causal_context(sequence, window) == pytest.approx(sum(seen) / sequence)


def test_a_step_by_hand() -> None:
    """8,192 tokens on one device: products are bound by FLOPs, and three times the forward's."""
    found = timed()
    tokens, h, heads = 8192, 2048, 16 * 128
    weights = 8 * (2 * h * (heads + heads // 2) + 3 * h * 8192) + h * 32000
    assert found.parts["products"] == pytest.approx(3 * 2 * tokens * weights / (989e12 * 0.803))
    scores = 8 * tokens * 4 * (4096 + 1) / 2 * heads
    assert found.parts["attention"] == pytest.approx(3.5 * scores / (989e12 * 0.35))
    assert found.mfu < 0.803
    assert found.tokens == 8192
    assert found.tokens_per_second == pytest.approx(8192 / found.seconds)
    assert found.dollars_per_billion == pytest.approx(1e9 / found.tokens_per_second / 3600 * 3.0)


def test_small_products_are_bound_by_memory() -> None:
    """Eight tokens: each matrix is read once for the forward and twice for the backward."""
    found = timed(sequence=8, micro_batch=1)
    weights = SMALL.num_parameters() - 2048 * 32000  # embeddings are looked up
    assert found.parts["products"] > 3 * 2 * weights / (3350e9 * 0.9) * 0.99
    assert found.parts["launches"] > 0


def test_groups_on_hosts_by_hand() -> None:
    """Eight devices a host; 450 GB/s between them and 50 GB/s each to other hosts, at 80 %."""
    wires = Wires(ParallelSpec(dp=32, tp=8), H100, EAGER)
    assert wires.gather(Group(8, 1), 8e9) == pytest.approx(7e9 / 360e9, abs=1e-4)
    assert wires.gather(Group(32, 8), 32e9) == pytest.approx(31e9 / 40e9, abs=1e-4)  # one rank of the group a host
    assert wires.gather(Group(32, 2), 32e9) == pytest.approx(31e9 / 160e9, abs=1e-4)  # four
    assert wires.gather(Group(128, 1), 128e9) == pytest.approx(127e9 / 320e9, abs=1e-4)
    assert wires.reduce(Group(8, 1), 8e9) == pytest.approx(14e9 / 360e9, abs=1e-4)
    assert wires.exchange(Group(16, 1), 16e9) == pytest.approx(8e9 / 40e9, abs=1e-4)  # half goes to the other host
    assert wires.gather(Group(1, 1), 8e9) == 0
    assert (wires.tensor, wires.shards) == (Group(8, 1), Group(32, 8))
    near = Wires(ParallelSpec(pp={"ranks": 4}, tp=2), H100, EAGER)
    assert near.send(360e9) == pytest.approx(1, abs=1e-3)
    assert wires.send(40e9) == pytest.approx(1, abs=1e-3)


def test_sharing_more_sends_more() -> None:
    """Four micro-batches: ZeRO-1 gathers and reduces once, 2 reduces each time, 3 gathers twice each time."""
    sent = []
    for zero in (1, 2, 3):
        parts = timed({"dp": 64, "zero": zero}, accumulation=4).parts
        sent.append(parts["gathers"] + parts["overlap"] + parts["copies"])
    assert sent == sorted(sent)
    assert sent[2] > 2 * sent[0]
    assert "gathers" not in timed().parts


def test_replicas_of_shards_send_less_between_hosts() -> None:
    whole, replicated = (timed({"dp": 64, "zero": 3, "hsdp": hsdp}, micro_batch=1) for hsdp in (1, 8))
    assert replicated.parts["optimizer"] > whole.parts["optimizer"]  # each keeps eight times as much
    assert replicated.parts["overlap"] != whole.parts["overlap"]


def test_what_checkpointing_makes_again() -> None:
    plain, full, half = (timed(checkpointing=every) for every in (0, 1, 2))
    forward = full.parts["again"]
    head = 2 * 8192 * 2048 * 32000 / (989e12 * 0.803)
    assert forward == pytest.approx(
        (plain.parts["products"] / 3 - head) + plain.parts["attention"] / 3.5 + _passes(plain)
    )
    assert half.parts["again"] == pytest.approx(forward / 2)
    assert timed(checkpointing="selective").parts["again"] == pytest.approx(_passes(plain))
    kept = timed(checkpointing="selective", how=Execution(again=0.5)).parts["again"]
    assert kept == pytest.approx(_passes(plain) + (plain.parts["products"] / 3 - head) / 2)


def _passes(found: StepTime) -> float:
    """Of a forward's layers: a third of the passes that are not the loss's."""
    loss = 30 * 8192 * 32000 / (3350e9 * 0.9)
    return (found.parts["passes"] - loss) / 3


def test_a_pipeline_waits_as_its_schedule_has_it() -> None:
    layout = {"pp": {"ranks": 4, "schedule": "zbv_zero_bubble"}}
    found = timed(layout, accumulation=8)
    assert found.run is not None
    again = simulate(schedule(ParallelSpec.model_validate(layout).pp, 8), None)
    assert found.run.table == again.table
    assert found.bubble == found.run.bubble > again.bubble  # stages are not alike
    computed = sum(seconds for name, seconds in found.parts.items() if name not in ("optimizer", "copies"))
    assert computed == pytest.approx(found.run.makespan)
    slower = timed({"pp": {"ranks": 4}}, accumulation=8)
    assert slower.bubble > found.bubble
    assert slower.seconds > found.seconds


def test_the_least_time_is_never_more() -> None:
    timer = Timer(SMALL, H100, Execution())
    pipelines = [
        {"ranks": p, "schedule": s} for p, s in product((2, 4), ("gpipe", "1f1b", "zbv_zero_bubble", "dual_pipe_v"))
    ]
    pipelines += [{"ranks": 2, "schedule": "interleaved_1f1b", "chunks": 4}, {"ranks": 4, "schedule": "looped_bfs"}]
    for pipeline, tp, count in product([{"ranks": 1}, *pipelines], (1, 4), (8, 16)):
        layout = ParallelSpec.model_validate({"pp": pipeline, "tp": tp, "dp": 2, "zero": 1})
        job = JobSpec(job="pretrain", sequence=2048, accumulation=count)
        found = timer.step(job, layout)
        assert timer.least(job, layout) <= found.seconds * (1 + 1e-12)
        assert found.seconds == pytest.approx(step_time(SMALL, job, layout, H100).seconds)


def test_tensor_parallelism_computes_less_and_talks() -> None:
    one, eight = timed(), timed({"tp": 8})
    assert eight.parts["products"] == pytest.approx(one.parts["products"] / 8, rel=0.15)  # narrow ones wait for memory
    volume = 8 * (4 * 2) + 2  # gathers and scatters: four a layer and direction, and the head's two
    assert eight.parts["tensor"] == pytest.approx(volume * (7 / 8 * 8192 * 2048 * 2 / 360e9 + 2e-5))
    beside = timed({"tp": 8}, how=Execution(async_tp=True))
    assert beside.parts["tensor"] < eight.parts["tensor"] / 6


def test_adapters() -> None:
    lora = LoRASpec(r=16)
    whole, adapted = timed(job="sft"), timed(job="sft", adapter=lora)
    assert 2 / 3 < adapted.parts["products"] / whole.parts["products"] < 0.9  # two products of three, and narrow ones
    assert adapted.parts["passes"] > whole.parts["passes"]  # what adapters make is added
    assert adapted.parts["optimizer"] < whole.parts["optimizer"] / 50
    quantized = timed(job="sft", adapter=lora, quantization=QuantizationSpec())
    assert quantized.parts["passes"] > adapted.parts["passes"]


def test_other_models_and_answers() -> None:
    forward = timed(checkpointing=1)
    pairs = timed(job="dpo", reference="model", micro_batch=1, checkpointing=1)
    assert pairs.tokens == forward.tokens
    assert pairs.parts["beside"] > forward.parts["again"]  # a forward, with its output matrix
    assert "beside" not in timed(job="dpo", reference="stored").parts
    drawn = timed(job="grpo", micro_batch=8, sequence=1024)
    assert drawn.parts["rollout"] > timed(job="grpo", micro_batch=8, sequence=512).parts["rollout"]


def test_experts_over_ranks() -> None:
    spec = preset("mixtral-8x7b").spec
    assert isinstance(spec, DecoderSpec)
    spread = timed({"dp": 8, "zero": 3, "ep": 8}, spec)
    assert spread.parts["experts"] > 0
    assert spread.parts["copies"] < timed({"dp": 8, "zero": 3}, spec).parts["copies"]  # fewer are gathered


def test_every_assumption_says_where_it_is_from() -> None:
    listed = {name: (value, source) for name, value, source in EAGER.sources()}
    assert all(len(source) > 10 for _, source in listed.values())
    assert listed["products"][0] == 0.803
    given = {name: source for name, _, source in replace(EAGER, products=0.5).sources()}
    assert given["products"] == "given"
    assert assumptions(find_device("a100")).products == 0.869
    assert assumptions(H100, compiled=True).residual_bytes < EAGER.residual_bytes
