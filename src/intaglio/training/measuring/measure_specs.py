"""What a recipe of alignment may ask to be measured beside its loss, as data."""

from typing import Literal

from pydantic import Field

from intaglio.specs import Spec
from intaglio.training.objectives.rl_specs import RewardSpec

__all__ = ["CompareSpec", "PairsSpec", "TasksSpec"]


class CompareSpec(Spec):
    """The policy beside the model that the run began with, every `sample_every` steps and at the end; see
    `side_by_side`.

    Attributes:
        prompts: rows whose prompts both answer, a path or the name of a data set; None takes those held out, or the
            recipe's own `prompts`.
        rows: of these prompts at most.
        shown: of their answers, on the terminal and in the log.
        batch: answers that are made together.
        rewards: what judges both; where the objective has rewards, beside those.
    """

    prompts: str | None = None
    rows: int = Field(32, gt=0)
    shown: int = Field(4, ge=0)
    batch: int = Field(64, gt=0)
    rewards: tuple[RewardSpec, ...] = ()


class TasksSpec(Spec):
    """Tasks of `intaglio eval` while it trains; see `task_exam`.

    Attributes:
        names: as `--tasks` has them, with commas.
        every: so many steps, and at the end; 0 for the end alone.
        limit: items of each at most, the same ones each time.
        shots: examples in front; several numbers make several scores.
        chat: whether they are put as chats.
        scoring: of choices; None as the task is published.
        max_tokens: of an answer; None as the task has it.
        batch: items that are asked together.
    """

    names: str
    every: int = Field(100, ge=0)
    limit: int | None = Field(100, gt=0)
    shots: tuple[int, ...] = (0,)
    chat: bool = False
    scoring: Literal["answer", "letter", "generate"] | None = None
    max_tokens: int | None = Field(None, gt=0)
    batch: int = Field(16, gt=0)


class PairsSpec(Spec):
    """Held-out pairs told apart, before and after; see `pair_exam`.

    Attributes:
        rows: pairs, the first of those held out.
        by: what of a policy's log-likelihood of an answer counts: its `mean` over tokens, which long answers do not
            lose by, or its `sum`.
    """

    rows: int = Field(500, gt=1)
    by: Literal["mean", "sum"] = "mean"
