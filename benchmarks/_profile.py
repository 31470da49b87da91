"""Where a training step's time goes: the profiler's operations, each one's own time, in a few groups.

An operation belongs to the function it runs in (the loss, a norm, the hand-over of gradients) unless it is a product
or attention itself; what remains is element-wise work and copies. Python and all that the profiler does not see is
the rest of the wall time.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from _timing import seconds
from torch.profiler import ProfilerActivity, profile

__all__ = ["shares"]

_BY_NAME = {
    **dict.fromkeys(("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmm_"), "products"),
    "aten::_scaled_dot_product_flash_attention_for_cpu": "attention forward",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": "attention backward",
}
_BY_FUNCTION = {
    "_ChunkedCrossEntropy": "loss",
    "_LeanRMSNorm": "norm",
    "AccumulateGrad": "optimizer",
    "Optimizer.step": "optimizer",
    "_foreach_": "optimizer",
    "aten::_fused_adam": "optimizer",
}
_ALONE = ("aten::copy_", "aten::zero_")
"""What the masters do at the top level of a step: they publish, and their gradients are emptied."""


def shares(step: Callable[[], object], steps: int) -> dict[str, float]:
    """Shares of the wall time of `steps` steps, by group; they sum to 1."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        wall = seconds(lambda: [step() for _ in range(steps)])
    found: dict[str, float] = defaultdict(float)
    for event in profiler.events():
        found[_group(event)] += event.self_cpu_time_total / 1e6
    found["python and the rest"] = wall - sum(found.values())
    return {group: round(time / wall, 3) for group, time in sorted(found.items(), key=lambda pair: -pair[1])}


def _group(event: Any) -> str:
    if event.name in _BY_NAME:
        return _BY_NAME[event.name]
    path = list(_path(event))
    for name in path:
        for function, group in _BY_FUNCTION.items():
            if function in name:
                return group
    return "optimizer" if path[-1] in _ALONE else "element-wise"


def _path(event: Any) -> Iterator[str]:
    """Its name, and those of what it runs in, innermost first."""
    while event is not None:
        yield event.name
        event = event.cpu_parent
