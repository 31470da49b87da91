"""lm-evaluation-harness in this process, where it is installed beside us: no server, no tokenizer but the subject's.

Its tasks and samples are those of `lm_eval`; only who answers is another: a subject, as in our own evaluation.
"""

import shutil
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from intaglio.engine.sampling_params import SamplingParams
from intaglio.evaluation.bridges.lm_eval import check_sheet, findings, task_names, write_task
from intaglio.evaluation.bridges.outside import OutsideError
from intaglio.evaluation.bridges.sheet import Sheet
from intaglio.evaluation.results import TaskResult
from intaglio.evaluation.subjects.subject import Answer, Likelihood, Subject, Unanswered

__all__ = ["is_inside", "run_inside"]


def is_inside() -> bool:
    """Whether lm-eval is installed beside us."""
    return find_spec("lm_eval") is not None


def run_inside(sheets: Sequence[Sheet], subject: Subject, folder: Path) -> tuple[dict[str, TaskResult], dict[str, str]]:
    """What lm-eval finds for each task, by name, and the versions that had a say.

    Args:
        sheets: what is asked.
        subject: who is asked.
        folder: for the tasks that are written; absolute.

    Raises:
        UserError: it has no form for a task.
        OutsideError: there is no answer to something it asks.
        SubjectGoneError: see `Subject`.
    """
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    for sheet in sheets:
        check_sheet(sheet)
    names = task_names(sheets)
    shutil.rmtree(folder, ignore_errors=True)
    for name, sheet in names.items():
        write_task(name, sheet, folder)
    manager, samples = TaskManager(include_path=str(folder)), dict[str, Any]()
    for chat in (False, True):
        if chosen := [name for name, sheet in names.items() if sheet.chat is chat]:
            model = _model(subject, chat)
            samples |= simple_evaluate(model, tasks=chosen, task_manager=manager, bootstrap_iters=0)["samples"]
    found = {sheet.task.name: sheet.result(findings(samples[name], sheet)) for name, sheet in names.items()}
    return found, {"lm_eval": version("lm_eval")}


def _model(subject: Subject, chat: bool) -> Any:
    """The subject as one of its models."""
    from lm_eval.api.model import LM

    asked = _Asked(subject, chat)
    return type("Inside", (LM,), {name: getattr(asked, name) for name in LM.__abstractmethods__})()


class _Asked:
    """What an `LM` must be able to do.

    Args:
        subject: does it.
        chat: whether a text is what a user says.
    """

    def __init__(self, subject: Subject, chat: bool) -> None:
        self._subject, self._chat = subject, chat

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """ln p of each continuation behind its context, and whether it is what would be said."""
        told = self._subject.likelihoods([request.args for request in requests])
        return [(one.nats, one.greedy) for one in map(_likelihood, told)]

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """No task of ours asks for it."""
        raise OutsideError("whole texts are measured by our own evaluation alone")

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        """What is written to each prompt; those that end alike, together."""
        said: list[str] = []
        for _, group in groupby((request.args for request in requests), key=lambda args: str(args[1])):
            texts, kwargs = zip(*group, strict=True)
            prompts = [[{"role": "user", "content": text}] if self._chat else text for text in texts]
            said += map(_text, self._subject.answers(prompts, _params(kwargs[0])))
        return said


def _params(kwargs: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=kwargs["max_gen_toks"], stop=tuple(kwargs["until"]))


def _likelihood(told: Likelihood | Unanswered) -> Likelihood:
    if isinstance(told, Unanswered):
        raise OutsideError(f"lm-eval got no answer: {told.reason}")
    return told


def _text(told: Answer | Unanswered) -> str:
    if isinstance(told, Unanswered):
        raise OutsideError(f"lm-eval got no answer: {told.reason}")
    return told.text
