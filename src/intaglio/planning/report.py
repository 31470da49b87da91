"""A job on a device: whether it fits, what the runtime takes beside, what to change, and what the papers' formulas say.
No torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from intaglio.planning.changes import Change, changes
from intaglio.planning.classic import Comparison, side_by_side
from intaglio.planning.devices import Device, Overhead, find_device, overhead
from intaglio.planning.job_plan import JobPlan, plan_job, require_room
from intaglio.planning.jobs import JobSpec
from intaglio.specs import DecoderSpec, validate
from intaglio.specs.parallel import ParallelSpec

__all__ = ["Report", "Verdict", "plan", "verdict"]

Verdict = Literal["fits", "tight", "too much"]


@dataclass(frozen=True)
class Report:
    """What is to be said of a job on a device.

    Attributes:
        plan: of the job.
        device: each rank's.
    """

    plan: JobPlan
    device: Device

    @cached_property
    def overhead(self) -> Overhead:
        """What the runtime takes beside the tensors."""
        return overhead(self.device, self.plan.peak_bytes, self.plan.layout.world)

    @property
    def verdict(self) -> Verdict:
        """See `verdict`."""
        return verdict(self.plan.peak_bytes, self.overhead, self.device.memory)

    @property
    def host_bytes(self) -> int:
        """Of the host's memory, for all ranks of one machine."""
        return self.plan.host_bytes * min(self.device.per_host, self.plan.layout.world)

    @cached_property
    def changes(self) -> list[Change]:
        """What makes it smaller, and by how much."""
        return changes(self.plan, cpu=self.device.cpu)

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """The papers' formulas beside ours."""
        return side_by_side(self.plan)

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        data = self.plan.plain()
        return {
            **data,
            "verdict": self.verdict,
            "overhead_bytes": self.overhead.plain(),
            "device": {"name": self.device.name, "title": self.device.title, "memory_bytes": self.device.memory},
            "host_bytes_per_machine": self.host_bytes,
            "job": self.plan.job.plain(),
            "parallel": self.plan.layout.plain(),
            "world": self.plan.layout.world,
            "dollars_an_hour": self.device.price * self.plan.layout.world,
            "changes": [change.plain() for change in self.changes],
            "classic": [vars(one) for one in self.comparisons],
        }


def verdict(tensors: int, beside: Overhead, memory: int) -> Verdict:
    """Whether tensors and runtime fit: surely, if the runtime takes little, or not even then."""
    if tensors + beside.most <= memory:
        return "fits"
    return "tight" if tensors + beside.least <= memory else "too much"


def plan(
    spec: DecoderSpec,
    parallel: ParallelSpec | Mapping[str, Any] | None = None,
    *,
    device: str | Device = "h100",
    **job: Any,
) -> Report:
    """The memory of a training job, by arithmetic: `plan(spec, {"dp": 8, "zero": 3}, job="dpo", sequence=4096)`.

    Args:
        spec: of the model, such as `preset("llama3.1-8b").spec`.
        parallel: the layout; None is one device.
        device: a name in the table (`devices`), `here`, or one of your own.
        job: fields of `JobSpec`.

    Raises:
        UserError: a field or device that is not known, a value that does not fit, or a layout that the model cannot
            have.
    """
    layout: ParallelSpec = validate(ParallelSpec, parallel if parallel is not None else {}, "parallel")
    wanted: JobSpec = validate(JobSpec, job, "plan")
    require_room(spec, wanted)
    found = find_device(device) if isinstance(device, str) else device
    return Report(plan_job(spec, wanted, layout, cpu=found.cpu), found)
