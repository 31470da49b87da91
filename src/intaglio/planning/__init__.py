"""What a job needs of memory, by arithmetic: closed forms, held against what is measured. No torch."""

from intaglio.planning.training import MemoryPlan, plan_training

__all__ = ["MemoryPlan", "plan_training"]
