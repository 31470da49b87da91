"""The panel layout and its inverse."""

import pytest
import torch

from intaglio.native.panels import (
    from_columns,
    from_panels,
    join_nibbles,
    split_nibbles,
    to_columns,
    to_panels,
)


def test_where_each_weight_stands() -> None:
    weight = torch.arange(64 * 6).view(64, 6)
    panels = to_panels(weight, 2)
    assert panels.shape == (2, 3, 64)
    for output, inner in ((0, 0), (31, 1), (32, 4), (63, 5)):
        assert panels[output // 32, inner // 2, output % 32 * 2 + inner % 2] == weight[output, inner]


@pytest.mark.parametrize("outputs", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("step", [2, 4])
def test_back_again(outputs: int, step: int) -> None:
    weight = torch.randn(outputs, 12)
    assert torch.equal(from_panels(to_panels(weight, step), outputs), weight)
    scales = torch.randn(outputs, 3)
    assert torch.equal(from_columns(to_columns(scales), outputs), scales)


def test_two_integers_in_a_byte() -> None:
    ints = torch.randint(-8, 8, (3, 5, 128), dtype=torch.int8)
    joined = join_nibbles(ints)
    assert joined.shape == (3, 5, 64)
    assert joined.dtype == torch.uint8
    assert torch.equal(split_nibbles(joined), ints)
