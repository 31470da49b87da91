"""A job's memory on each rank: one device as ever, what layouts move, which models a job holds, when the peak comes."""

from typing import Any

import pytest

from intaglio.errors import UserError
from intaglio.lineage import preset
from intaglio.planning import plan_training
from intaglio.planning.activations import activations
from intaglio.planning.cache import cache_bytes
from intaglio.planning.gathering import gathered_of
from intaglio.planning.job_plan import JobPlan, plan_job
from intaglio.planning.jobs import JOBS, JobSpec
from intaglio.planning.layouts import local_spec
from intaglio.planning.rank_plan import RankPlan, plan_rank
from intaglio.planning.schedules import live_chunks, schedule
from intaglio.planning.shards import Rank
from intaglio.planning.states import tensors_of
from intaglio.planning.tape import Shared
from intaglio.specs import DecoderSpec, validate
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.parallel import ParallelSpec
from intaglio.specs.quantization import QuantizationSpec
from tiny_specs import GATED, ZOO, attention, block, decoder, with_moe

SPEC = decoder(block(attention=attention(num_kv_heads=2), repeat=4))
LORA, NF4 = LoRASpec(r=4), QuantizationSpec()


def planned(layout: dict[str, Any] | None = None, spec: DecoderSpec = SPEC, **job: Any) -> JobPlan:
    fields = {"sequence": 32, **job}
    return plan_job(spec, validate(JobSpec, fields), validate(ParallelSpec, layout or {}))


def component(plan: RankPlan, moment: str, name: str) -> int:
    return next(one.parts.get(name, 0) for one in plan.moments if one.name == moment)


@pytest.mark.parametrize(("adapter", "quantization"), [(None, None), (LORA, None), (LORA, NF4)])
@pytest.mark.parametrize("checkpointing", [0, 1, 2, "selective"])
@pytest.mark.parametrize("chunk", [None, 8])
def test_one_device_is_what_it_was(adapter: Any, quantization: Any, checkpointing: Any, chunk: int | None) -> None:
    job = JobSpec(
        sequence=16, micro_batch=2, adapter=adapter, quantization=quantization, checkpointing=checkpointing, chunk=chunk
    )
    found = plan_rank(SPEC, job, cpu=True)
    known = plan_training(
        SPEC, 32, chunk=chunk, checkpoint_every=checkpointing, documents=(16, 16), adapter=adapter,
        quantization=quantization,
    )  # fmt: skip
    assert found.peak_bytes == known.peak
    assert found.resident_bytes == known.resident


@pytest.mark.parametrize("job", JOBS)
def test_components_add_up(job: str) -> None:
    staged = {} if job in ("kto", "ppo", "grpo") else {"pp": 2}  # which ask the whole model between steps
    for layout in ({}, {"dp": 4, "zero": 3}, {"dp": 2, "zero": 1, "tp": 2, **staged}):
        data = planned(layout, job=job, micro_batch=2, accumulation=4).plain()
        assert sum(data["components"].values()) == data["peak_bytes"]
        assert data["peak_bytes"] == max(moment["bytes"] for moment in data["moments"].values())
        assert all(sum(one["components"].values()) == one["bytes"] for one in data["moments"].values())


def test_each_stage_of_zero_keeps_less() -> None:
    kept = [planned({"dp": 4, "zero": zero}).worst.resident_bytes for zero in (0, 1, 2, 3)]
    assert kept[0] > kept[1] == kept[2] == kept[3]  # between steps FSDP2 keeps shards of everything
    peaks = [planned({"dp": 4, "zero": zero}, accumulation=2).peak_bytes for zero in (1, 2, 3)]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 3


def test_what_is_gathered() -> None:
    of_layer, ends = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32 + 2 * 32, 64 * 32
    for zero in (1, 2, 3):
        tensors = tensors_of(SPEC, ParallelSpec(dp=4, zero=zero), Rank())
        found = gathered_of(tensors, 2, adapted=False, accumulates=True)
        everything = 2 * (4 * of_layer + 2 * ends + 32)
        assert found.whole == everything
        whole = 4 * everything // 2 if zero == 1 else 0
        end = 2 * (ends + 32)
        assert found.loss == {
            "gathered parameters": end if zero == 3 else everything,
            "whole gradients": whole,
            "sent gradients": 0,
        }
        first, last = found.turns[0], found.turns[3]
        if zero == 3:
            assert last.comes["gathered parameters"] == 3 * 2 * of_layer  # the buffer before, its own, what comes out
            assert last.backward["gathered parameters"] == 2 * 2 * of_layer  # and the one before
            assert first.backward["gathered parameters"] == 2 * of_layer  # the embedding is not asked for
            assert last.sent["gathered parameters"] == 2 * of_layer
            assert found.turns["end"].backward["gathered parameters"] == end + 2 * of_layer
            assert found.embedding["gathered parameters"] == 0
        else:
            assert {one.backward["gathered parameters"] for one in found.turns.values()} == {everything}
        down = 2 * 48 * 32
        assert last.backward["whole gradients"] == down + whole
        assert last.sent["whole gradients"] == 2 * of_layer + whole
        if zero != 1:  # where they are added up, those that have been sent are gone
            assert last.backward["sent gradients"] == 2 * end
            assert first.backward["sent gradients"] == first.sent["sent gradients"] == 4 * of_layer


def test_a_tied_matrix_stays_gathered() -> None:
    tied = decoder(tie_embeddings=True)
    found = gathered_of(tensors_of(tied, ParallelSpec(dp=2, zero=3), Rank()), 2, adapted=False, accumulates=False)
    matrix = 2 * 64 * 32
    assert found.loss["gathered parameters"] == matrix + 2 * 32
    assert found.embedding["gathered parameters"] == matrix
    assert found.turns[0].sent["whole gradients"] > matrix
    alone = gathered_of(tensors_of(tied, ParallelSpec(), Rank()), 2, adapted=False, accumulates=False)
    assert alone.others["whole gradients"] == matrix  # of the loss, until the embedding's comes
    assert alone.embedding["whole gradients"] == 2 * matrix


def test_ranks_that_share_a_sequence_keep_their_part_of_it() -> None:
    whole = planned().worst
    for layout in ({"tp": 2}, {"cp": 2}):
        part = planned(layout).worst
        for kind in ("attention", "feed_forward", "residual"):
            name = f"activations: {kind}"
            half = component(whole, "loss", name) // 2
            more = 32 * 32 * 2 if kind == "residual" else 4 * 32 * 16 * 2  # results of attention that came back
            assert half <= component(part, "loss", name) <= half + (more if layout == {"cp": 2} else 0), (layout, kind)


def test_along_the_sequence_torch_keeps_what_it_has_gathered() -> None:
    rows = 32 * 32 * 2  # T x E in bf16
    alike, along = (planned({"tp": 2, "sequence_parallel": on}).worst for on in (False, True))
    gain = sum(alike.peak.parts.values()) - sum(along.peak.parts.values())
    kept = sum(
        component(alike, "loss", name) - component(along, "loss", name)
        for name in ("activations: residual", "activations: norm")
    )
    assert kept == (2 * 4 + 1) * rows // 2 + (2 * 4 + 1) * 32 * 4 // 2  # inputs of norms, and their numbers: half each
    assert gain >= kept


@pytest.mark.parametrize(("tp", "along"), [(1, False), (2, False), (2, True), (4, False), (4, True)])
def test_a_layers_activations_are_those_of_the_closed_form(tp: int, along: bool) -> None:
    """In elements of a token: 6 h + 2 h_kv + 4 f and, in bytes, a log-sum a head and a number a norm. Of these tp
    leaves 4 h whole (the inputs of norms and of matrices), or along the sequence 2 h (what matrices read, gathered).
    """
    h, h_kv, f, heads, tokens = 64, 32, 96, 8, 32
    layer = block(attention=attention(num_heads=heads, num_kv_heads=4), feed_forward={**GATED, "intermediate_size": f})
    one, two = (decoder({**layer, "repeat": n}, hidden_size=h) for n in (1, 2))
    shared = Shared(sequence=tp if along else 1)
    kept = [activations(local_spec(spec, tp), tokens, 4, shared=shared).kept for spec in (one, two)]
    cut = 2 * h + 2 * h_kv + 4 * f
    elements = (cut + 2 * h) / tp + 2 * h if along else cut / tp + 4 * h
    numbers = 4 * heads / tp + 8 / (tp if along else 1)
    assert kept[1] - kept[0] == tokens * (4 * elements + numbers)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"])
def test_a_pipeline_keeps_what_its_schedule_has_under_way(name: str) -> None:
    layout = {"pp": {"ranks": 2, "schedule": name}}
    plan = planned(layout, accumulation=8)
    live = live_chunks(schedule(plan.layout.pp, 8))
    one = planned({"pp": {"ranks": 2, "schedule": "gpipe"}}, accumulation=1)
    chunks = plan.layout.pp.chunks_a_rank
    for rank, count in zip(plan.ranks, live, strict=True):
        kept = component(rank, "loss", "activations: feed_forward")
        assert kept * chunks == component(one.ranks[rank.rank.pp], "loss", "activations: feed_forward") * count


def test_only_the_last_stage_has_a_loss() -> None:
    first, last = planned({"pp": 2}, accumulation=2).ranks
    assert component(first, "loss", "logits") == 0 < component(last, "loss", "logits")
    rooms = 2 + 2  # gradients for both, and what went out
    assert component(first, "loss", "pipeline buffers") == rooms * 64 * 32 * 2  # a room is of 64 tokens


def test_offload_moves_what_stays_to_the_host() -> None:
    plain, moved = (planned({"dp": 2, "zero": 3, "offload": on}).worst for on in (False, True))
    assert sum(moved.host.values()) == plain.resident_bytes
    assert moved.resident_bytes == 0


def test_paged_moments_are_the_hosts() -> None:
    plain, paged = (planned(optimizer=name).worst for name in ("adamw", "paged_adamw"))
    assert paged.host == {"optimizer states": plain.resident["optimizer states"]}
    assert plain.peak_bytes - paged.peak_bytes == plain.resident["optimizer states"]


def test_ppo_holds_four_models() -> None:
    found = planned(job="ppo").worst.resident
    weights = 2 * SPEC.num_parameters()
    score = 2 * (SPEC.num_parameters() - 64 * 32 + 32)
    assert found["weights"] == found["reference weights"] == weights
    assert found["critic weights"] == found["reward model weights"] == score
    assert found["critic optimizer states"] > 0
    kept = component(planned(job="sft").worst, "loss", "activations: attention")
    assert component(planned(job="ppo").worst, "loss", "activations: attention") == 2 * kept
    shared = planned(job="ppo", value="shared", reward_models=0).worst.resident
    assert not any(name.startswith(("critic", "reward")) for name in shared)


def test_an_adapter_spares_the_reference_and_the_critics_weights() -> None:
    found = planned(job="ppo", adapter=LORA).worst.resident
    assert not {"reference weights", "critic weights"} & found.keys()
    assert 0 < found["critic adapters"] - 32 * 4 <= found["adapters"]  # all but what the output matrix would have


@pytest.mark.parametrize(("job", "adapter", "reference"), [
    ("dpo", None, False), ("dpo", LORA, False), ("kto", None, True), ("kto", LORA, False), ("orpo", None, False),
    ("grpo", None, False), ("ppo", None, True),
])  # fmt: skip
def test_who_keeps_a_reference(job: str, adapter: Any, reference: bool) -> None:
    assert ("reference weights" in planned(job=job, adapter=adapter).worst.resident) == reference


def test_said_otherwise() -> None:
    assert "reference weights" in planned(job="dpo", reference="model").worst.resident
    assert "reference weights" in planned(job="grpo", beta=0.1).worst.resident


def test_answers_have_keys_and_values() -> None:
    plan = planned(job="grpo", micro_batch=4, accumulation=2).worst
    assert component(plan, "rollout", "kv cache") == 8 * cache_bytes(SPEC, 32, "bfloat16") == 8 * 32 * 4 * 2 * 16 * 2
    assert (
        component(planned(job="grpo", micro_batch=4, at_once=2).worst, "rollout", "kv cache") == 2 * 32 * 4 * 2 * 16 * 2
    )
    whole = component(planned({"dp": 2, "zero": 3}, job="grpo").worst, "rollout", "gathered parameters")
    assert whole == 2 * SPEC.num_parameters()


def test_a_reward_model_has_no_logits() -> None:
    plan = planned(job="reward").worst
    assert component(plan, "loss", "logits") == component(plan, "loss", "loss") == 0
    assert plan.resident["weights"] == 2 * (SPEC.num_parameters() - 64 * 32 + 32)


def test_comparisons_hold_two_answers() -> None:
    one, two = planned(micro_batch=2), planned(job="dpo", micro_batch=1)
    assert component(one.worst, "loss", "activations: norm") == component(two.worst, "loss", "activations: norm")


def test_rows_that_travel_to_experts_are_put_in_order_twice_more() -> None:
    spec = with_moe()
    apart, spread = (planned({"dp": 4, "zero": 3, "ep": ep}, spec).worst for ep in (1, 4))
    more = component(spread, "loss", "activations: moe") - component(apart, "loss", "activations: moe")
    rows, ends = 32 * 2, (8 - 2) * 4
    assert more == rows * 8 + rows * 32 * 2 - ends  # their order, and the results that go back


def test_a_gpu_fuses_latent_attention() -> None:
    spec = ZOO["latent"]
    on_cpu, on_gpu = (plan_rank(spec, JobSpec(sequence=32), cpu=cpu).peak_bytes for cpu in (True, False))
    assert on_gpu < on_cpu


@pytest.mark.parametrize(("layout", "job", "said"), [
    ({"tp": 3}, {}, "tp 3 does not divide"),
    ({"tp": 2}, {"adapter": LORA, "quantization": NF4}, "4-bit weights"),
    ({"dp": 2, "zero": 1}, {"optimizer": "muon"}, "muon steps whole matrices"),
    ({"pp": 4}, {"accumulation": 2}, "2 micro-batches for 1f1b"),
    ({"pp": 8}, {"accumulation": 8}, "8 stages"),
])  # fmt: skip
def test_what_cannot_be(layout: dict[str, Any], job: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        planned(layout, **job)


@pytest.mark.parametrize(("fields", "said"), [
    ({"quantization": {}}, "give an adapter"),
    ({"reference": "off", "job": "dpo"}, "nothing to switch off"),
    ({"reference": "model"}, "means nothing to job sft"),
    ({"reference": "stored", "job": "kto"}, "not known before"),
    ({"micro_batch": -1}, "micro_batch"),
    ({"checkpointng": 1}, "did you mean checkpointing"),
])  # fmt: skip
def test_jobs_that_mean_nothing(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        validate(JobSpec, fields)


def test_a_big_model_is_planned_at_once() -> None:
    spec = preset("llama3.1-405b").spec
    assert isinstance(spec, DecoderSpec)
    layout = {"dp": 8, "zero": 1, "tp": 8, "pp": 8}
    plan = planned(layout, spec, job="pretrain", sequence=8192, accumulation=32, checkpointing=1)
    assert len(plan.ranks) == 8
    assert plan.worst.peak_bytes == max(rank.peak_bytes for rank in plan.ranks)
