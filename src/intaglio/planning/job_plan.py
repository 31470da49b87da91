"""The memory of a training job on all kinds of ranks that a layout has. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from intaglio.errors import UserError
from intaglio.planning.adapters import ranks_of, trained_shapes
from intaglio.planning.jobs import JobSpec
from intaglio.planning.layouts import require_cut_adapter, require_possible
from intaglio.planning.rank_plan import RankPlan, plan_rank
from intaglio.planning.refusals import of_job, require_shareable
from intaglio.planning.shards import Rank
from intaglio.specs import DecoderSpec
from intaglio.specs.parallel import ParallelSpec

__all__ = ["JobPlan", "plan_job", "require_room"]


@dataclass(frozen=True)
class JobPlan:
    """What a job needs.

    Attributes:
        spec: of the model.
        job: what is done.
        layout: of the ranks.
        ranks: a plan for each rank of the pipeline. Of those that share a matrix or a set of shards it is the first,
            which has the longest pieces.
    """

    spec: DecoderSpec
    job: JobSpec
    layout: ParallelSpec
    ranks: tuple[RankPlan, ...]

    @cached_property
    def worst(self) -> RankPlan:
        """The rank that needs most."""
        return max(self.ranks, key=lambda rank: rank.peak_bytes)

    @property
    def peak_bytes(self) -> int:
        """Of that rank."""
        return self.worst.peak_bytes

    @property
    def host_bytes(self) -> int:
        """Of the host's memory for that rank."""
        return sum(self.worst.host.values())

    def plain(self) -> dict[str, Any]:
        """As JSON: the worst rank's, and each rank of a pipeline."""
        data = self.worst.plain()
        if len(self.ranks) > 1:
            data["ranks"] = [rank.plain() for rank in self.ranks]
        return data


def plan_job(
    spec: DecoderSpec,
    job: JobSpec,
    layout: ParallelSpec = ParallelSpec(),  # noqa: B008 (frozen)
    *,
    cpu: bool = False,
    ranks: Mapping[str, int] | None = None,
    native: bool = True,
) -> JobPlan:
    """What a job needs under a layout; arguments as of `plan_rank`.

    Raises:
        UserError: the model cannot be laid out so, what it trains in cannot be shared out so, or see `plan_rank`.
    """
    require_shareable(of_job(job), layout)
    require_possible(spec, layout, job.sequence)
    if job.adapter is not None and layout.tp > 1:
        beside = ranks_of(spec, job.adapter) if ranks is None else ranks
        for name in trained_shapes(spec, job.adapter, beside):
            require_cut_adapter(name.rpartition(".")[0], dora=job.adapter.use_dora)
    places = [Rank(pp=pp) for pp in range(layout.pp.ranks)]
    return JobPlan(
        spec, job, layout, tuple(plan_rank(spec, job, layout, at, cpu=cpu, ranks=ranks, native=native) for at in places)
    )


def require_room(spec: DecoderSpec, job: JobSpec) -> None:
    """Refuses sequences that are longer than the model takes.

    Raises:
        UserError: they are.
    """
    if job.sequence > spec.context_limit:
        what = f"sequences of {job.sequence} tokens, where the model takes {spec.context_limit}"
        raise UserError(what, where="sequence", mend="shorten them")
