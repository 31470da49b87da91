"""Every native operator against its definition written out in double precision."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from intaglio import native
from intaglio.native.panels import to_panels
from intaglio.parts.position import rotate
from native_build import native_file, with_native

__all__ = ["native_file", "with_native"]  # fixtures

pytestmark = pytest.mark.usefixtures("with_native")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-6}
every_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


# Products


def weights(outputs: int, inputs: int) -> Tensor:
    return torch.randn(outputs, inputs).bfloat16()


@every_dtype
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 2), (40, 34), (96, 576), (33, 1100)])
def test_products(dtype: torch.dtype, outputs: int, inputs: int) -> None:
    weight, bias = weights(outputs, inputs), torch.randn(outputs)
    for rows in (1, 2, 3, 4, 7, 70):
        x = torch.randn(rows, inputs).to(dtype)
        expected = F.linear(x.double(), weight.double(), bias.double())
        made = native.linear(x, to_panels(weight, 2), bias, outputs)
        assert made.dtype == dtype
        torch.testing.assert_close(made.double(), expected, rtol=TOLERANCE[dtype], atol=1e-4)


@every_dtype
def test_a_row_does_not_depend_on_its_neighbours(dtype: torch.dtype, two_threads: None) -> None:
    weight, x = to_panels(weights(200, 96), 2), torch.randn(67, 96).to(dtype)
    together = native.linear(x, weight, None, 200)
    torch.set_num_threads(1)
    for row in (0, 3, 64, 66):
        assert torch.equal(native.linear(x[row : row + 1], weight, None, 200)[0], together[row])


def test_a_wide_product_is_not_rounded_to_bf16() -> None:
    weight, x = weights(40, 96), torch.randn(5, 96).bfloat16()
    wide = native.linear(x, to_panels(weight, 2), None, 40, wide=True)
    assert wide.dtype == torch.float32
    torch.testing.assert_close(wide.double(), F.linear(x.double(), weight.double()), rtol=1e-5, atol=1e-5)
    assert torch.equal(wide.bfloat16(), native.linear(x, to_panels(weight, 2), None, 40))


# Attention


@dataclass
class Batch:
    """Sequences in a cache whose other slots hold NaN: nobody may look there."""

    query: Tensor
    keys: Tensor
    values: Tensor
    table: Tensor
    starts: Tensor
    lengths: Tensor

    def attend(self, window: int | None = None, softcap: float | None = None) -> Tensor | None:
        tables = (self.table, self.starts, self.lengths)
        return native.paged_attention(self.query, self.keys, self.values, *tables, 0.2, window, softcap, 16)

    def slots(self, sequence: int, count: int) -> Tensor:
        place = torch.arange(count)
        return self.table[sequence, place // 16] * 16 + place % 16


def batch(dtype: torch.dtype, heads: Sequence[int], widths: Sequence[int], texts: Sequence[tuple[int, int]]) -> Batch:
    """Texts of some length, each with some new tokens at its end; blocks in random order."""
    lengths, new = zip(*texts, strict=True)
    blocks = [-(-length // 16) for length in lengths]
    order = torch.randperm(sum(blocks) + 3, dtype=torch.int32)
    table = torch.full((len(texts), max(blocks)), -1, dtype=torch.int32)
    keys, values = (torch.full((len(order) * 16, heads[1], width), float("nan"), dtype=dtype) for width in widths)
    starts = torch.tensor([0, *itertools.accumulate(new)], dtype=torch.int32)
    query = torch.randn(sum(new), heads[0], widths[0]).to(dtype)
    made = Batch(query, keys, values, table, starts, torch.tensor(lengths, dtype=torch.int32))
    for row, (count, begin) in enumerate(zip(blocks, itertools.accumulate([0, *blocks]), strict=False)):
        table[row, :count] = order[begin : begin + count]
        slots = made.slots(row, lengths[row])
        keys[slots], values[slots] = (torch.randn(lengths[row], heads[1], width).to(dtype) for width in widths)
    return made


def written_out(made: Batch, window: int | None, softcap: float | None) -> Tensor:
    """softmax(Q K^T * 0.2) V, sequence by sequence, in fp64."""
    outs = []
    for row, length in enumerate(made.lengths.tolist()):
        query = made.query[made.starts[row] : made.starts[row + 1]].double()  # (q, H, D)
        group = query.shape[1] // made.keys.shape[1]
        slots = made.slots(row, length)
        keys, values = (x[slots].double().repeat_interleave(group, dim=1) for x in (made.keys, made.values))
        scores = torch.einsum("qhd,khd->hqk", query, keys) * 0.2
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        distance = torch.arange(length - len(query), length)[:, None] - torch.arange(length)
        hidden = (distance < 0) | (distance >= (window or length))
        outs.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(dim=-1), values))
    return torch.cat(outs)


TEXTS = [(1, 1), (5, 5), (33, 7), (100, 100), (600, 1), (1100, 1), (1030, 30)]


@every_dtype
@pytest.mark.parametrize(("heads", "widths"), [((9, 3), (64, 64)), ((4, 4), (8, 6)), ((5, 1), (40, 24))], ids=str)
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (20, None), (700, 3.0)])
def test_attention(
    dtype: torch.dtype, heads: tuple[int, int], widths: tuple[int, int], window: int | None, softcap: float | None
) -> None:
    torch.manual_seed(0)
    made = batch(dtype, heads, widths, TEXTS)
    out = made.attend(window, softcap)
    assert out is not None
    torch.testing.assert_close(
        out.double(), written_out(made, window, softcap), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


def test_blocks_behind_the_window_are_not_looked_at() -> None:
    made = batch(torch.float32, (4, 2), (16, 16), [(200, 1), (300, 40)])
    before = made.attend(window=30)
    assert before is not None
    made.table[0, : (199 - 29) // 16] = made.table[1, : (260 - 29) // 16] = -(2**30)
    after = made.attend(window=30)
    assert after is not None
    assert torch.equal(after, before)


@every_dtype
def test_a_token_does_not_depend_on_its_chunk(dtype: torch.dtype, two_threads: None) -> None:
    together = batch(dtype, (6, 2), (32, 32), [(700, 90), (1200, 1), (40, 1)])
    out = together.attend()
    assert out is not None
    for place in (0, 17, 89):
        length = torch.tensor([610 + place + 1], dtype=torch.int32)
        starts = torch.tensor([0, 1], dtype=torch.int32)
        alone = Batch(
            together.query[place : place + 1], together.keys, together.values, together.table[:1], starts, length
        ).attend()
        assert alone is not None
        assert torch.equal(alone[0], out[place])


def test_values_may_be_part_of_the_keys() -> None:
    made = batch(torch.bfloat16, (4, 1), (40, 32), [(70, 3), (9, 9)])
    made.values = made.keys[..., :32]
    out = made.attend()
    assert out is not None
    torch.testing.assert_close(out.double(), written_out(made, None, None), rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize(("dtype", "width"), [(torch.float16, 8), (torch.bfloat16, 7)], ids=str)
def test_what_is_not_served_is_left_to_torch(dtype: torch.dtype, width: int) -> None:
    assert batch(dtype, (2, 1), (width, width), [(5, 5)]).attend() is None


# Chains


@every_dtype
@pytest.mark.parametrize("width", [5, 32, 576])
def test_rms_norm(dtype: torch.dtype, width: int) -> None:
    x, weight = torch.randn(3, 4, width).to(dtype), torch.randn(width)
    expected = F.rms_norm(x.double(), (width,), weight.double(), 1e-5)
    torch.testing.assert_close(native.rms_norm(x, weight, 1e-5).double(), expected, rtol=TOLERANCE[dtype], atol=1e-6)


@every_dtype
@pytest.mark.parametrize("rows", [1, 2])
def test_rotary_turns(dtype: torch.dtype, rows: int) -> None:
    joined = torch.randn(2, 7, 5 * 24).to(dtype)
    heads = joined.unflatten(-1, (5, 24)).transpose(1, 2)  # (B, H, T, D), not contiguous
    angles = tuple(torch.randn(rows, 1, 7, 16).to(dtype) for _ in range(2))
    expected = rotate(heads.double(), (angles[0].double(), angles[1].double()))
    native.rotate_(heads, *angles)
    torch.testing.assert_close(heads.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@every_dtype
@pytest.mark.parametrize("width", [3, 48])
def test_silu_mul(dtype: torch.dtype, width: int) -> None:
    both = (torch.randn(5, 2 * width) * 4).to(dtype)
    gate, up = both.double().chunk(2, dim=-1)
    torch.testing.assert_close(
        native.silu_mul(both).double(), F.silu(gate) * up, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )
