"""What a job needs of memory and time, by arithmetic: closed forms, held against what is measured. No torch."""

from intaglio.planning.jobs import JobSpec
from intaglio.planning.report import Report, plan
from intaglio.planning.training import MemoryPlan, plan_training

__all__ = ["JobSpec", "MemoryPlan", "Report", "plan", "plan_training"]
