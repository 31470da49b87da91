"""How much memory becomes blocks."""

from typing import Any

import pytest
import torch

from intaglio.engine.blocks import BlockPool
from intaglio.engine.capacity import free_memory, pools_for
from intaglio.engine.interface import EngineConfig
from intaglio.engine.paged import PagedMemory, windows_of
from intaglio.errors import UserError
from intaglio.specs import DecoderSpec
from tiny_specs import LATENT, ZOO, attention, block, decoder

CPU = torch.device("cpu")
LONG = decoder(block(attention=attention(window=4)), block(repeat=2), max_position_embeddings=4096)


def pools(spec: DecoderSpec, max_model_len: int = 64, **config: Any) -> list[BlockPool]:
    return pools_for(spec, EngineConfig(**{"block_size": 4, **config}), max_model_len, torch.float32, CPU)


def taken(spec: DecoderSpec, made: list[BlockPool], max_model_len: int = 64) -> int:
    memory = PagedMemory(spec, [pool.num_blocks for pool in made], 4, max_model_len)
    return sum(tensor.nbytes for tensor in memory.tensors())


@pytest.mark.parametrize("spec", [ZOO["GQA"], decoder(block(attention=LATENT, repeat=2)), LONG])
def test_blocks_fill_the_memory_they_may_take(spec: DecoderSpec) -> None:
    budget = 100_000
    made = pools(spec, kv_memory_bytes=budget)
    one_more = sum(4 * block.attention.kv_bytes_per_token("float32") for block in spec.blocks)
    assert budget - one_more < taken(spec, made) <= budget


def test_a_windows_group_has_no_more_than_it_can_use() -> None:
    sizes = {"kv_memory_bytes": 10**7, "max_sequences": 3, "max_tokens_per_step": 8}
    windowed, full = pools(LONG, 4096, **sizes)
    assert (windowed.window, full.window) == (4, None)
    assert windowed.num_blocks == 3 * windowed.peak(4096, 8) < full.num_blocks
    assert taken(LONG, [windowed, full], 4096) <= 10**7


def test_no_more_blocks_than_all_sequences_can_use() -> None:
    (pool,) = pools(ZOO["GQA"], 30, kv_memory_bytes=10**9, max_sequences=5)
    assert pool.num_blocks == 5 * 8


def test_a_window_that_no_text_outgrows_is_none() -> None:
    assert windows_of(LONG, 64) == [4, None]
    assert windows_of(LONG, 4) == [None]


def test_a_number_may_be_given() -> None:
    assert [pool.num_blocks for pool in pools(ZOO["GQA"], num_blocks=7)] == [7]


def test_too_little_memory_is_told() -> None:
    with pytest.raises(UserError, match="one block of keys and values takes 512 bytes, and there are 100"):
        pools(ZOO["GQA"], kv_memory_bytes=100)


def test_the_machine_has_memory() -> None:
    assert 10**6 < free_memory(CPU) < 10**15
