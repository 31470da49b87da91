"""Bytes that a rank keeps from step to step: sums by hand, and nothing lost between ranks."""

import pytest

from intaglio.planning import plan_training
from intaglio.planning.adapters import ranks_of, trained_shapes
from intaglio.planning.shards import Rank
from intaglio.planning.states import States, frozen_bytes, states_of, tensors_of
from intaglio.specs import DecoderSpec
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.parallel import ParallelSpec
from intaglio.specs.quantization import QuantizationSpec
from tiny_specs import GATED, ZOO, attention, block, decoder, with_moe

BF16, FP32 = 2, 4
SPEC = decoder(block(attention=attention(num_kv_heads=2), feed_forward=GATED))
"""11,872 parameters in 12 tensors: 64 x 32 twice, 32; and 32 x 32 twice, 16 x 32 twice, 48 x 32 thrice, 32 twice."""


def states(layout: ParallelSpec, rank: Rank = Rank(), itemsize: int = BF16, spec: DecoderSpec = SPEC) -> States:  # noqa: B008
    return states_of(tensors_of(spec, layout, rank), itemsize)


def test_one_device() -> None:
    assert states(ParallelSpec()) == States(2 * 11872, 0, 4 * 11872, 4 * 11872, 8 * 11872 + 4 * 12)
    assert states(ParallelSpec(), itemsize=FP32) == States(4 * 11872, 0, 0, 4 * 11872, 8 * 11872 + 4 * 12)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_shards_of_three(zero: int) -> None:
    layout = ParallelSpec(
        dp=3, zero=zero
    )  # pieces of 22, 22 and 20 rows of 64; 16 of 48; 11, 11, 10 of 32; 6, 6, 4 of 16
    first = 22 * 32 * 2 + 11 + (11 * 32 + 6 * 32 * 2 + 11 * 32 + 16 * 32 * 2 + 11 * 48 + 11 * 2)
    last = 20 * 32 * 2 + 10 + (10 * 32 + 4 * 32 * 2 + 10 * 32 + 16 * 32 * 2 + 10 * 48 + 10 * 2)
    assert 2 * first + last == 11872
    for shard, count in enumerate((first, first, last)):
        padding = (first - count) * 8
        assert states(layout, Rank(shard=shard)) == States(4 * count, 0, 0, 4 * count, 8 * count + 4 * 12, padding)


def test_replicas_of_shards_hold_the_same() -> None:
    layout = ParallelSpec(dp=6, zero=3, hsdp=2)
    assert states(layout, Rank(shard=2)) == states(ParallelSpec(dp=3, zero=3), Rank(shard=2))


def test_two_share_every_matrix() -> None:
    here = 32 * 32 * 2 + 32 + (16 * 32 + 8 * 32 * 2 + 32 * 16 + 24 * 32 * 2 + 32 * 24 + 32 * 2)
    assert states(ParallelSpec(tp=2)) == States(2 * here, 0, 4 * here, 4 * here, 8 * here + 4 * 12)


def test_shards_of_what_two_share() -> None:
    pieces = [states(ParallelSpec(dp=3, zero=3, tp=2), Rank(shard=n)).weights for n in range(3)]
    assert sum(pieces) == states(ParallelSpec(tp=2), itemsize=FP32).weights


def test_stages_have_their_layers() -> None:
    spec = decoder(block(repeat=4), tie_embeddings=True)
    of_layer = 4 * 32 * 32 + 3 * 48 * 32 + 2 * 32
    ranks = [states(ParallelSpec(pp={"ranks": 2}), Rank(pp=n), spec=spec) for n in range(2)]
    assert sum(rank.weights for rank in ranks) == 2 * (4 * of_layer + 32 + 2 * 64 * 32)  # the tied matrix twice
    round_trip = states(ParallelSpec(pp={"ranks": 2, "schedule": "zbv_zero_bubble"}), Rank(pp=0), spec=spec)
    assert round_trip.weights == 2 * (2 * of_layer + 32 + 64 * 32)  # first and last stage on one rank, the matrix once


def test_experts_are_spread() -> None:
    spec = with_moe()
    experts = 8 * 3 * 16 * 32
    rest = spec.num_parameters() - experts
    assert states(ParallelSpec(dp=4, ep=4), spec=spec).gradients == 4 * (rest + experts // 4)


@pytest.mark.parametrize("world", [2, 3, 4, 7])
@pytest.mark.parametrize("spec", [one for name, one in ZOO.items() if "learned" not in name or "positions" in name])
def test_nothing_is_lost(spec: DecoderSpec, world: int) -> None:
    ranks = [states(ParallelSpec(dp=world, zero=3), Rank(shard=n), FP32, spec) for n in range(world)]
    assert sum(rank.weights for rank in ranks) == 4 * spec.num_parameters()
    assert sum(rank.weights + rank.padding // 2 for rank in ranks) == world * ranks[0].weights


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_an_adapter_is_shared_and_what_is_frozen_at_three_only(zero: int) -> None:
    lora = LoRASpec(r=4)
    trained = trained_shapes(SPEC, lora, ranks_of(SPEC, lora))
    layout = ParallelSpec(dp=2, zero=zero)
    tensors = [tensors_of(SPEC, layout, Rank(shard=n), trained=trained) for n in range(2)]
    found = [states_of(one, BF16, adapted=True) for one in tensors]
    whole = plan_training(SPEC, 8, adapter=lora)
    assert sum(one.adapters for one in found) == whole.adapters * (1 if zero else 2)
    assert sum(one.weights for one in found) == whole.weights * (1 if zero == 3 else 2)


def test_four_bits_are_cut_tensor_by_tensor() -> None:
    few = QuantizationSpec()
    assert few.parts(32 * 32) == ((512, 1), (16, 1), (1, 4))
    tensors = tensors_of(SPEC, ParallelSpec(dp=3, zero=3), Rank(shard=1), trained={})
    matrices = [32 * 32] * 2 + [16 * 32] * 2 + [48 * 32] * 3
    packed = sum(-(-count // 2 // 3) + -(-count // 64 // 3) + 0 + 4 for count in matrices)  # the middle piece of each
    plain = 22 * 32 * 2 + 11 + 11 * 2
    assert frozen_bytes(tensors, BF16, few) == packed + 2 * plain
    assert frozen_bytes(tensors_of(SPEC, ParallelSpec(dp=3, zero=2), Rank(), trained={}), BF16, few) == (
        plan_training(SPEC, 8, adapter=LoRASpec(), quantization=few).weights
    )


def test_a_head_takes_the_output_matrix_away() -> None:
    whole = SPEC.num_parameters() - 64 * 32 + 32
    assert states_of(tensors_of(SPEC, ParallelSpec(), Rank(), scores=True), BF16).gradients == 4 * whole


def test_muon_keeps_one_moment_of_a_matrix() -> None:
    found = states_of(tensors_of(SPEC, ParallelSpec(), Rank()), BF16, optimizer="muon").optimizer_states
    matrices, rest = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32, 2 * 64 * 32 + 3 * 32
    assert found == 4 * matrices + 8 * rest + 4 * 5
