"""Layers cut into stages so that the slowest of them is as fast as can be. No torch.

The output matrix counts: it belongs to the last stage, and over a small model it is worth many layers (over
SmolLM2-135M's eight). Embeddings are looked up, which costs nothing to speak of.
"""

from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from math import inf

from intaglio.specs import DecoderSpec

__all__ = ["balanced", "layers_of_stages"]


def layers_of_stages(spec: DecoderSpec, stages: int, context: int = 0) -> list[range]:
    """The layers of each stage, by their numbers; the most FLOPs that a stage has are as few as can be.

    Args:
        spec: of the whole model; it has as many layers as stages at least.
        stages: of the pipeline.
        context: tokens of a sequence, for what attention costs beside its matrices.
    """
    layers = [block.flops_per_token(spec.hidden_size, context) for block in spec.blocks]
    return balanced(layers, stages, last=2 * spec.vocab_size * spec.hidden_size)


def balanced(costs: Sequence[int], parts: int, last: int = 0) -> list[range]:
    """Consecutive places cut into `parts`, none empty, so that the greatest cost of one is least.

    Among such cuts an even one (of a small sum of squares) is taken.

    Args:
        costs: of each place.
        parts: how many; no more than places.
        last: what the last part costs besides.
    """
    assert 0 < parts <= len(costs), f"{len(costs)} places in {parts} parts"
    sums = [0, *accumulate(costs)]

    @cache
    def best(count: int, stop: int) -> tuple[float, float, tuple[int, ...]]:
        """Of the places before `stop` in `count` parts: the greatest cost, the sum of squares, and where parts end."""
        more = last if count == parts else 0
        if count == 1:
            cost = sums[stop] + more
            return cost, cost**2, (stop,)
        found: tuple[float, float, tuple[int, ...]] = inf, inf, ()
        for cut in reversed(range(count - 1, stop)):
            cost = sums[stop] - sums[cut] + more
            if cost > found[0]:
                break  # and so are all with an earlier cut
            greatest, squares, ends = best(count - 1, cut)
            found = min(found, (max(greatest, cost), squares + cost**2, (*ends, stop)))
        return found

    return [range(*ends) for ends in pairwise((0, *best(parts, len(costs))[2]))]
