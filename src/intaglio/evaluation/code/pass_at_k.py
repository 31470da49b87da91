"""Pass@k: how likely one of k programs is right (Chen et al. 2021, arXiv 2107.03374, equation 1)."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from intaglio.errors import UserError
from intaglio.evaluation.answers import Scored
from intaglio.evaluation.code.human_eval import program_of
from intaglio.evaluation.code.sandbox import DEFAULT, Limits, Sandbox, Verdict
from intaglio.evaluation.tasks.item import Task

__all__ = ["asked_ks", "pass_at_k", "score_code"]


def pass_at_k(samples: int, right: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k), without bias: the share of draws of k out of n that hold one of the c right ones.

    Args:
        samples: n, at least k.
        right: c of them pass.
    """
    assert 0 <= right <= samples, "no more pass than there are"
    assert 1 <= k <= samples, "so many must have been drawn"
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)


def asked_ks(task: Task) -> tuple[int, ...]:
    """Every k of the task's `pass@k`.

    Raises:
        UserError: a metric of another kind.
    """
    ks = []
    for name in task.metrics or ("pass@1",):
        kind, _, number = name.partition("@")
        if kind != "pass" or not number.isdecimal() or not int(number):
            raise UserError(f"no metric {name!r} of programs", where="metrics", mend="known: pass@K, such as pass@1")
        ks.append(int(number))
    return tuple(ks)


def score_code(
    task: Task,
    answers: Mapping[str, Sequence[str]],
    sandbox: Sandbox,
    limits: Limits = DEFAULT,
    *,
    workers: int | None = None,
    done: Callable[[str], None] = lambda item: None,
) -> dict[str, Scored]:
    """Runs what was written to the items of a task, each sample a program of its own.

    Args:
        task: of the kind `code`.
        answers: id of an item -> the samples; items without any have no row.
        sandbox: where they run.
        limits: of each.
        workers: programs at once; default: as many as cores.
        done: told of each item that is done.

    Raises:
        UserError: fewer samples than a k, or the sandbox does not start.
    """
    ks = asked_ks(task)
    items = [item for item in task.items if answers.get(item.id)]
    fewest = min((len(answers[item.id]) for item in items), default=max(ks))
    if fewest < max(ks):
        raise UserError(f"pass@{max(ks)} needs {max(ks)} samples, and there are {fewest}", where="metrics")
    found = {}
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        try:
            runs = {
                item.id: [pool.submit(sandbox.run, program_of(item, text), limits) for text in answers[item.id]]
                for item in items
            }
            for name, futures in runs.items():
                found[name] = _scored([future.result() for future in futures], ks)
                done(name)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return found


def _scored(verdicts: Sequence[Verdict], ks: Sequence[int]) -> Scored:
    right = sum(verdict.passed for verdict in verdicts)
    scores = {f"pass@{k}": pass_at_k(len(verdicts), right, k) for k in ks}
    if len(verdicts) > 1:
        return Scored(f"{right} of {len(verdicts)} pass", scores)
    return Scored("passes" if right else verdicts[0].why, scores)
