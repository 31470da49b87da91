"""The n-gram against its formula written out plainly; xz against itself."""

import lzma
import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.evaluation import byte_ngram
from intaglio.evaluation.byte_ngram import ByteNgram, xz_bits_per_byte


def plain_bits(training: list[bytes], held_out: list[bytes], order: int) -> float:
    """Witten and Bell's formula, a byte at a time."""
    after: defaultdict[bytes, Counter[int]] = defaultdict(Counter)
    start = b"\n" * (order - 1)
    for text in training:
        for place, byte in enumerate(text):
            context = (start + text)[place : place + order - 1]
            for length in range(order):
                after[context[order - 1 - length :]][byte] += 1

    def probability(byte: int, context: bytes) -> float:
        shorter = probability(byte, context[1:]) if context else 1 / 256
        seen = after.get(context, Counter())
        total = seen.total() + len(seen)
        return (seen[byte] + len(seen) * shorter) / total if total else shorter

    costs = [
        -math.log2(probability(byte, (start + text)[place : place + order - 1]))
        for text in held_out
        for place, byte in enumerate(text)
    ]
    return sum(costs) / len(costs)


TEXTS = st.lists(st.binary(max_size=12) | st.text("ab\n", max_size=20).map(str.encode), max_size=4)


@settings(max_examples=40)
@given(training=TEXTS, held_out=TEXTS.filter(any), order=st.integers(1, 5))
def test_it_is_the_formula(training: list[bytes], held_out: list[bytes], order: int) -> None:
    model = ByteNgram(training, order)
    assert model.bits_per_byte(held_out) == pytest.approx(plain_bits(training, held_out, order))


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [bytes(np.random.default_rng(seed).integers(97, 101, size=50, dtype=np.uint8)) for seed in range(9)]
    whole = ByteNgram(documents).bits_per_byte(documents[:3])
    monkeypatch.setattr(byte_ngram, "BLOCK", 64)
    assert ByteNgram(documents).bits_per_byte(iter(documents[:3])) == pytest.approx(whole)


def test_each_byte_has_a_distribution() -> None:
    model = ByteNgram([b"abracadabra"])
    context = int.from_bytes(b"abra", "big") << 8
    keys = np.array([context + byte for byte in range(256)], dtype=np.uint64)
    assert model._probabilities(keys).sum() == pytest.approx(1)


def test_nothing_seen_costs_eight_bits_and_nothing_asked_is_no_number() -> None:
    assert ByteNgram([]).bits_per_byte([b"anything"]) == pytest.approx(8)
    assert math.isnan(ByteNgram([b"a"]).bits_per_byte([]))
    assert math.isnan(xz_bits_per_byte([]))


def test_xz_is_the_size_of_an_archive() -> None:
    texts = [b"spam and eggs\n" * 40, b"more spam\n" * 7]
    joined = b"".join(texts)
    assert xz_bits_per_byte(texts) == 8 * len(lzma.compress(joined, preset=9)) / len(joined)
