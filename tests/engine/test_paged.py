"""Paged attention: whatever is computed with what, each token's logits are those of the uncached forward."""

import random
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from intaglio.engine.blocks import BlockPool
from intaglio.engine.paged import Chunk, PagedMemory, windows_of
from intaglio.engine.runner import Runner
from intaglio.models.decoder import Decoder
from intaglio.parts.context import Causal
from native_build import native_file, with_native  # noqa: F401
from tiny_specs import LATENT, MOE, ZOO, attention, block, decoder
from toy_llms import random_model

CLOSE = 1e-4
_BLOCKS = 96  # four texts of 24 tokens, in blocks of one
NTK = {"scaling": {"kind": "dynamic", "factor": 4.0, "original_max_position_embeddings": 8}}
FAMILIES = {
    "grouped": ZOO["GQA"],
    "learned positions": ZOO["learned positions, tied"],
    "one local, one global": ZOO["dense and banded in turn"],
    "two windows": decoder(block(attention=attention(window=3)), block(attention=attention(window=6, num_kv_heads=2))),
    "soft-capped": decoder(block(attention=attention(softcap=5.0, num_kv_heads=2, window=5)), logit_softcap=30.0),
    "latent, experts": decoder(block(attention=LATENT, feed_forward=MOE, repeat=2)),
    "dynamic": decoder(block(repeat=2, attention=attention(rope=NTK)), max_position_embeddings=8),
    "parallel": ZOO["parallel layer_norm"],
}
every_family = pytest.mark.parametrize("name", FAMILIES)
Step = list[tuple[int, int]]  # (which sequence, how many tokens)


@cache
def model_of(name: str) -> Decoder:
    return random_model(FAMILIES[name])


class Planned(Causal):
    """An uncached forward whose row was planned for a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def planned(self, positions: Tensor) -> Tensor:
        return positions.new_full((1, 1), self.length)


@torch.no_grad()
def uncached(model: Decoder, tokens: Sequence[int], planned: int) -> Tensor:
    """(T, V)"""
    return model(torch.tensor([list(tokens)]), context=Planned(planned))[0]


class Paged:
    """Sequences over a small paged memory, fed by hand."""

    def __init__(self, model: Decoder, texts: Sequence[Sequence[int]], block_size: int, *, deterministic: bool = False):
        windows = windows_of(model.spec, 32)
        self.pools = [BlockPool(_BLOCKS, block_size, window) for window in windows]
        for pool in self.pools:  # blocks of no sequence lie side by side
            random.Random(0).shuffle(order := list(range(_BLOCKS)))
            taken = [pool.allocate() for _ in range(_BLOCKS)]
            assert sorted(taken) == sorted(order)
            for number in order:
                pool.release(number)
        self.memory = PagedMemory(model.spec, [_BLOCKS] * len(windows), block_size, 32)
        for tensor in self.memory.tensors():
            tensor.fill_(float("nan"))  # what nobody wrote nobody may read
        self.runner = Runner(model, self.memory, deterministic=deterministic)
        self.texts = texts
        self.tables: list[list[list[int]]] = [[[] for _ in windows] for _ in texts]
        self.done = [0] * len(texts)
        self.logits: list[list[Tensor]] = [[] for _ in texts]

    def step(self, step: Step) -> None:
        chunks = [self.chunk(row, count) for row, count in step]
        hidden = self.runner.hidden_states(chunks)
        for (row, count), logits in zip(step, self.runner.logits(hidden).split([n for _, n in step]), strict=True):
            self.done[row] += count
            self.logits[row].append(logits)
            for pool, table in zip(self.pools, self.tables[row], strict=True):
                pool.give_back(table, self.done[row])

    def chunk(self, row: int, count: int) -> Chunk:
        start, text = self.done[row], self.texts[row]
        for pool, table in zip(self.pools, self.tables[row], strict=True):
            pool.grow(table, start, start + count)
        return Chunk(text[start : start + count], start, self.tables[row], len(text))

    def all_logits(self, row: int) -> Tensor:
        return torch.cat(self.logits[row])


@st.composite
def interleavings(draw: st.DrawFn) -> tuple[list[list[int]], list[Step], int]:
    """Texts of up to 24 tokens, and steps that compute all of them in any order and any pieces."""
    lengths = draw(st.lists(st.integers(1, 24), min_size=1, max_size=4))
    dice = random.Random(draw(st.integers(0, 999)))
    texts = [[dice.randrange(64) for _ in range(length)] for length in lengths]
    left, steps = list(lengths), []
    while any(left):
        chosen = draw(st.lists(st.sampled_from([row for row, n in enumerate(left) if n]), min_size=1, unique=True))
        step = [(row, draw(st.integers(1, left[row]) | st.just(1))) for row in chosen]
        for row, count in step:
            left[row] -= count
        steps.append(step)
    return texts, steps, draw(st.sampled_from([1, 3, 4, 16]))


@every_family
@settings(max_examples=4)
@given(case=interleavings())
def test_any_interleaving_is_the_uncached_forward(name: str, case: tuple[list[list[int]], list[Step], int]) -> None:
    texts, steps, block_size = case
    model, paged = model_of(name), Paged(model_of(name), texts, block_size)
    for step in steps:
        paged.step(step)
    for row, text in enumerate(texts):
        expected = uncached(model, text, len(text))
        torch.testing.assert_close(paged.all_logits(row), expected, rtol=CLOSE, atol=CLOSE)


@every_family
@settings(max_examples=3)
@given(case=interleavings())
def test_deterministic_logits_are_equal_to_the_last_bit(
    name: str, case: tuple[list[list[int]], list[Step], int]
) -> None:
    """Case 14: whatever the batch mates, the pieces and the blocks."""
    texts, steps, block_size = case
    together = Paged(model_of(name), texts, block_size, deterministic=True)
    for step in steps:
        together.step(step)
    for row, text in enumerate(texts):
        alone = Paged(model_of(name), [text], 4, deterministic=True)
        alone.step([(0, len(text))])
        assert torch.equal(together.all_logits(row), alone.all_logits(0))


@every_family
@pytest.mark.usefixtures("with_native")
def test_the_native_operator_says_the_same(name: str) -> None:
    """Through the whole model: chunks, windows whose blocks are gone, latents that hold their values."""
    dice = random.Random(1)
    texts = [[dice.randrange(64) for _ in range(length)] for length in (24, 9, 1, 17)]
    steps: list[Step] = [[(0, 5), (1, 9), (2, 1)], [(0, 1), (3, 11)], [(3, 1), (0, 17)], [(0, 1), (3, 5)]]
    paged = Paged(model_of(name), texts, 4)
    for step in steps:
        paged.step(step)
    for row, text in enumerate(texts):
        expected = uncached(model_of(name), text, len(text))
        torch.testing.assert_close(paged.all_logits(row), expected, rtol=CLOSE, atol=CLOSE)
