"""What a rank holds of a parameter: pieces as torch cuts them, and nothing lost between ranks."""

from math import prod

import pytest
import torch

from intaglio.planning.parameters import parameter_shapes
from intaglio.planning.shards import Rank, chunk, computed_shape, padded_elements, sharded_shape, shards_of
from intaglio.specs import DecoderSpec
from intaglio.specs.parallel import ParallelSpec
from tiny_specs import ZOO, attention, block, decoder, with_moe


@pytest.mark.parametrize("size", [1, 2, 5, 10, 64])
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7])
def test_pieces_are_those_of_torch(size: int, parts: int) -> None:
    pieces = [len(piece) for piece in torch.arange(size).chunk(parts)]
    assert [chunk(size, parts, index) for index in range(parts)] == pieces + [0] * (parts - len(pieces))


@pytest.mark.parametrize(("name", "shape", "here"), [
    ("layers.0.attention.q_proj.weight", (32, 24), (16, 24)),
    ("layers.0.attention.q_proj.bias", (32,), (16,)),
    ("layers.0.attention.o_proj.weight", (24, 32), (24, 16)),
    ("layers.0.attention.o_proj.bias", (24,), (24,)),
    ("layers.0.attention.q_norm.weight", (8,), (8,)),
    ("layers.0.attention.kv_a_proj.weight", (20, 32), (20, 32)),
    ("layers.0.attention.kv_b_proj.weight", (56, 16), (28, 16)),
    ("layers.0.feed_forward.down_proj.weight", (32, 48), (32, 24)),
    ("layers.0.feed_forward.experts.up_proj", (8, 16, 32), (8, 8, 32)),
    ("layers.0.feed_forward.experts.down_proj", (8, 32, 16), (8, 32, 8)),
    ("layers.0.feed_forward.shared.gate_proj.weight", (24, 32), (12, 32)),
    ("layers.0.feed_forward.router.weight", (8, 32), (8, 32)),
    ("layers.0.attention.q_proj.lora_A", (4, 24), (4, 24)),
    ("layers.0.attention.q_proj.lora_B", (32, 4), (16, 4)),
    ("layers.0.feed_forward.down_proj.lora_A", (4, 48), (4, 24)),
    ("layers.0.feed_forward.down_proj.lora_B", (32, 4), (32, 4)),
    ("embed_tokens.weight", (65, 32), (33, 32)),
    ("lm_head.weight", (64, 32), (32, 32)),
    ("positions.weight", (16, 32), (16, 32)),
    ("norm.weight", (32,), (32,)),
])  # fmt: skip
def test_tensor_parallelism_cuts_what_it_should(name: str, shape: tuple[int, ...], here: tuple[int, ...]) -> None:
    assert computed_shape(name, shape, ParallelSpec(tp=2), Rank()) == here


@pytest.mark.parametrize("layout", [
    ParallelSpec(dp=3, zero=1),
    ParallelSpec(dp=6, zero=3, hsdp=2),
    ParallelSpec(dp=2, zero=3, cp=2),
    ParallelSpec(dp=5, zero=2),
])  # fmt: skip
@pytest.mark.parametrize("spec", [ZOO["GQA"], ZOO["tied"], ZOO["experts and a shared one"]])
def test_what_ranks_share_is_the_whole(spec: DecoderSpec, layout: ParallelSpec) -> None:
    for name, shape in parameter_shapes(spec).items():
        pieces = [prod(sharded_shape(name, shape, layout, Rank(shard=n))) for n in range(layout.shards)]
        assert sum(pieces) == prod(shape), name
        assert max(pieces) == padded_elements(name, shape, layout), name


def test_experts_are_shared_by_those_that_have_the_same() -> None:
    layout, name = ParallelSpec(dp=4, zero=3, ep=2), "layers.0.feed_forward.experts.up_proj"
    shape = parameter_shapes(with_moe())[name]
    here = [
        sharded_shape(name, computed_shape(name, shape, layout, rank), layout, rank) for rank in map(ranked, range(4))
    ]
    assert shards_of(name, layout) == 2
    assert here == [(2, *shape[1:])] * 4  # of 8 experts 4 on each of two ranks, which share them with another each
    assert shards_of("layers.0.feed_forward.router.weight", layout) == 4


def ranked(number: int) -> Rank:
    return Rank(shard=number)


def test_a_number_is_not_cut() -> None:
    beta = decoder(
        block(
            attention=attention(),
            feed_forward={"intermediate_size": 8, "activation": {"kind": "swish", "learned": True}},
        )
    )
    name = "layers.0.feed_forward.activation.beta"
    assert sharded_shape(name, parameter_shapes(beta)[name], ParallelSpec(dp=2, zero=3), Rank()) == ()
