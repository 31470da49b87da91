"""Tasks of `intaglio eval` put to the model that is being trained, every so many steps: how its scores grow.

The log has `eval_TASK_METRIC` and the ends of its 95 % interval, `..._low` and `..._high`; with several numbers of
shots a task is called `TASK@SHOTS`. `intaglio eval --compare RUN...` draws them as curves.
"""

from collections.abc import Callable
from typing import Any

from intaglio.evaluation.results import Results
from intaglio.evaluation.runs import Settings, evaluate, units_of
from intaglio.evaluation.subjects.local import LocalSubject
from intaglio.evaluation.tasks.read import read_tasks
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.measuring.measure_specs import TasksSpec
from intaglio.training.rollout import answering

__all__ = ["TaskExam"]


class TaskExam:
    """The tasks of one run; read when it begins, so that it does not fail hours later.

    Args:
        spec: which tasks, and how they are put.
        seed: of the items and of the examples in front of them.
        tokenizer: the run's.
        say: told of what is fetched, and of rows that are left out.

    Raises:
        UserError: see `read_tasks` and `units_of`.
    """

    def __init__(self, spec: TasksSpec, seed: int, tokenizer: Tokenizer, say: Callable[[str], None]) -> None:
        self.spec, self._tokenizer = spec, tokenizer
        how: dict[str, Any] = {"chat": spec.chat, "scoring": spec.scoring, "max_tokens": spec.max_tokens}
        self._settings = Settings(spec.shots, spec.limit, seed, **how)
        self._units = units_of(read_tasks(spec.names, say=say), self._settings)
        for unit in self._units:
            bad = unit.task.bad_rows
            if bad:
                say(f"{unit.name}: {len(bad)} bad rows are left out, the first {bad[0].where}: {bad[0].why}")

    def take(self, model: Any) -> Results:
        """What the model scores as it is; it trains on afterwards if it did before.

        Raises:
            UserError: a chat, and no template; or answers that are programs.
        """
        with answering(model, self._tokenizer, self.spec.batch) as llm:
            subject = LocalSubject(llm.model, llm.tokenizer, llm.complete)
            return evaluate(self._units, subject, self._settings, batch=self.spec.batch)

    @staticmethod
    def lines(results: Results) -> dict[str, float]:
        """The scores as the log has them."""
        found: dict[str, float] = {}
        for name, result in results.tasks.items():
            for metric, one in result.metrics.items():
                key = f"eval_{name}_{metric}"
                found |= {key: one.mean, f"{key}_low": one.low, f"{key}_high": one.high}
        return found
