"""Layers cut into stages: the slowest as fast as can be, as brute force finds it."""

from itertools import combinations, pairwise

import pytest

from intaglio.planning.cuts import balanced, layers_of_stages
from intaglio.planning.stages import stages_of
from tiny_specs import block, decoder

COSTS = [5, 1, 1, 7, 2, 2, 3, 4]


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("last", [0, 6, 30])
def test_no_cut_has_a_faster_slowest_part(parts: int, last: int) -> None:
    every = [(0, *inner, len(COSTS)) for inner in combinations(range(1, len(COSTS)), parts - 1)]
    costs = [[sum(COSTS[a:b]) for a, b in pairwise(ends)] for ends in every]
    best = min(max([*one[:-1], one[-1] + last]) for one in costs)
    found = [sum(COSTS[place] for place in part) for part in balanced(COSTS, parts, last)]
    assert max([*found[:-1], found[-1] + last]) == best


def test_even_where_that_is_as_fast() -> None:
    assert [len(part) for part in balanced([1] * 8, 4)] == [2, 2, 2, 2]
    assert [len(part) for part in balanced([1] * 9, 4)] in ([2, 2, 2, 3], [2, 2, 3, 2], [2, 3, 2, 2], [3, 2, 2, 2])


def test_a_large_vocabulary_is_worth_layers() -> None:
    small, large = (decoder(block(repeat=12), vocab_size=size) for size in (64, 4096))
    assert [len(layers) for layers in layers_of_stages(small, 3)] == [4, 4, 4]
    lengths = [len(layers) for layers in layers_of_stages(large, 3)]
    assert lengths[-1] < lengths[0]
    assert sum(lengths) == 12
    stages = stages_of(large, 3)
    assert [stage.layers.start for stage in stages[1:]] == [stage.layers.stop for stage in stages[:-1]]
    assert [(stage.first, stage.last) for stage in stages] == [(True, False), (False, False), (False, True)]
