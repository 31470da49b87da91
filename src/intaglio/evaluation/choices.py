"""Multiple choice by likelihood, with lm-evaluation-harness's metrics.

As there (0.4.13, `ConfigurableTask.process_results`, lm_eval/api/task.py), of the choices' ln p:

- `acc`: the likeliest is right
- `acc_norm`: the one with the most ln p a character is right, the blank in front not counted
- `acc_bytes`: the same a byte of UTF-8

A tie goes to the first. Where the choices are letters, all three are one and only `acc` is told.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from intaglio.errors import UserError
from intaglio.evaluation.results import Missing, Outcome
from intaglio.evaluation.subjects.subject import Likelihood, Prompt, Subject, Unanswered
from intaglio.evaluation.tasks.item import Item, Task
from intaglio.text.chat import render_chat

__all__ = ["bare_choices", "choice_scores", "choose"]


def choose(task: Task, items: Sequence[Item], prompts: Sequence[Prompt], subject: Subject) -> list[Outcome | Missing]:
    """Asks for the likelihood of each choice of each item.

    Args:
        task: of the kind `choice`, arranged.
        items: some of its items.
        prompts: what stands before the answer, for each.
        subject: who is asked.

    Raises:
        UserError: a chat, and no tokenizer with a template to render it with.
        SubjectGoneError: see `Subject`.
    """
    pairs, ends = list[tuple[str, str]](), [0]
    for item, prompt in zip(items, prompts, strict=True):
        pairs += _pairs(item, prompt, subject)
        ends.append(len(pairs))
    told = subject.likelihoods(pairs)
    rows = [told[start:end] for start, end in pairwise(ends)]
    return [_outcome(task, *one) for one in zip(items, prompts, rows, strict=True)]


def choice_scores(nats: Sequence[float], choices: Sequence[str], gold: Sequence[int]) -> dict[str, float]:
    """`acc`, `acc_norm` and `acc_bytes` of one item.

    Args:
        nats: ln p of each choice.
        choices: as they are counted: without the blank in front.
        gold: which are right.
    """
    values: NDArray[np.float64] = np.array(nats, dtype=np.float64)
    lengths: dict[str, NDArray[np.float64] | NDArray[np.int_]] = {
        "acc": np.ones(len(nats)),
        "acc_norm": np.array([max(len(one), 1) for one in choices]),
        "acc_bytes": np.array([max(len(one.encode()), 1) for one in choices]),
    }
    return {metric: float(int(np.argmax(values / length)) in gold) for metric, length in lengths.items()}


def bare_choices(item: Item) -> list[str]:
    """The choices without the blank that parts them from the question, where the question does not end in it."""
    if item.question[-1:].isspace():
        return list(item.choices)
    return [choice.removeprefix(" ") for choice in item.choices]


def _pairs(item: Item, prompt: Prompt, subject: Subject) -> list[tuple[str, str]]:
    if isinstance(prompt, str):
        return [(prompt, choice) for choice in item.choices]
    if subject.tokenizer is None:
        mend = "give --tokenizer DIR, or take --scoring generate"
        raise UserError("likelihoods in a chat need the model's chat template", where=subject.name, mend=mend)
    text = render_chat(subject.tokenizer, prompt, add_generation_prompt=True).text
    return [(text, choice.strip()) for choice in item.choices]


def _outcome(task: Task, item: Item, prompt: Prompt, told: Sequence[Likelihood | Unanswered]) -> Outcome | Missing:
    found = [one for one in told if isinstance(one, Likelihood)]
    if len(found) < len(told):
        reason = next(one.reason for one in told if isinstance(one, Unanswered))
        return Missing(item.id, item.where, reason)
    bare, nats = bare_choices(item), [one.nats for one in found]
    scores = choice_scores(nats, bare, item.gold)
    if wanted := task.metrics or (("acc",) if task.scoring == "letter" else ()):
        scores = {metric: value for metric, value in scores.items() if metric in wanted}
    return Outcome(
        task=task.name,
        id=item.id,
        category=item.category,
        where=item.where,
        prompt=prompt if isinstance(prompt, str) else list(prompt),
        prediction=bare[int(np.argmax(nats))],
        right=[bare[i] for i in item.gold],
        scores=scores,
        nats=nats,
        num_tokens=[one.num_tokens for one in found],
    )
