"""Results of several runs on the same items, held against the first: differences, item by item paired.

A difference of means has a bootstrap interval over items, each paired with itself; where scores are 0 or 1 also the
exact McNemar test, and the items that changed sides. Each figure stands for itself: of twenty compared, one is
outside its 95 % interval by luck. Corpus BLEU and chrF, which are no means, are compared by paired bootstrap too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from intaglio.errors import UserError
from intaglio.evaluation.answers import tokenize_of
from intaglio.evaluation.intervals import Interval, bootstrap_mean, paired_difference
from intaglio.evaluation.results import Outcome, Results, TaskResult
from intaglio.evaluation.significance import sign_test
from intaglio.evaluation.translation import translation_gain, translation_scores

__all__ = ["Difference", "compare"]

_OF_THE_WHOLE = ("bleu", "chrf")


@dataclass(frozen=True)
class Difference:
    """One metric of a task or category, in one run and in the first.

    Attributes:
        task, category, metric: what; an empty category is the whole task.
        run, base: names of the two.
        items: that both have answered.
        score, base_score: of each.
        difference: score minus base score.
        p: of McNemar's test; None where scores are not 0 or 1.
        gained, lost: ids of items that only the run, or only the base, has right, where scores are 0 or 1.
    """

    task: str
    category: str
    metric: str
    run: str
    base: str
    items: int
    score: Interval
    base_score: Interval
    difference: Interval
    p: float | None = None
    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def real(self) -> bool:
        """Whether the interval of the difference leaves 0 out."""
        return self.difference.low > 0 or self.difference.high < 0

    def as_json(self) -> dict[str, Any]:
        """Intervals as lists of mean, low and high."""
        named = {name: [*getattr(self, name)] for name in ("score", "base_score", "difference")}
        return {**asdict(self), **named, "gained": [*self.gained], "lost": [*self.lost]}


def compare(runs: Mapping[str, Results]) -> list[Difference]:
    """Every run against the first: by task, metric and category, in the order of the first.

    Args:
        runs: name -> results; two at least.

    Raises:
        UserError: they have no task in common, or one whose items or settings differ.
    """
    (base, first), *others = runs.items()
    found = [one for name, results in others for one in _against(name, results, base, first)]
    order = {task: place for place, task in enumerate(first.tasks)}
    return sorted(found, key=lambda one: order[one.task])


def _against(name: str, results: Results, base: str, first: Results) -> Iterator[Difference]:
    shared = [task for task in first.tasks if task in results.tasks]
    if not shared:
        raise UserError(f"has no task in common with {base}", where=name)
    for task in shared:
        ours, theirs = results.tasks[task], first.tasks[task]
        if ours.hash != theirs.hash:
            what = f"{task} has other items or another layout than in {base}: scores on it cannot be compared"
            raise UserError(what, where=name, mend="run both on the same files with the same options")
        yield from _differences(task, (name, base), ours, theirs)


def _differences(task: str, names: tuple[str, str], ours: TaskResult, theirs: TaskResult) -> Iterator[Difference]:
    mine = {outcome.id: outcome for outcome in ours.outcomes}
    pairs = [(mine[other.id], other) for other in theirs.outcomes if other.id in mine]
    yield from _of_means(task, "", names, pairs)
    yield from _of_wholes(task, names, pairs, [name for name in _OF_THE_WHOLE if name in ours.metrics])
    categories = dict.fromkeys(one.category for one, _ in pairs if one.category)
    if len(categories) > 1:
        for category in categories:
            yield from _of_means(task, category, names, [pair for pair in pairs if pair[0].category == category])


def _of_means(
    task: str, category: str, names: tuple[str, str], pairs: Sequence[tuple[Outcome, Outcome]]
) -> Iterator[Difference]:
    for metric in dict.fromkeys(metric for one, _ in pairs for metric in one.scores):
        both = [(a, b) for a, b in pairs if metric in a.scores and metric in b.scores]
        if both:
            yield _of_mean(task, category, metric, names, both)


def _of_mean(
    task: str, category: str, metric: str, names: tuple[str, str], pairs: Sequence[tuple[Outcome, Outcome]]
) -> Difference:
    ours, theirs = ([one.scores[metric] for one in side] for side in zip(*pairs, strict=True))
    ids = [one.id for one, _ in pairs]
    means = bootstrap_mean(ours), bootstrap_mean(theirs), paired_difference(ours, theirs)
    found = Difference(task, category, metric, *names, len(pairs), *means)
    if not {*ours, *theirs} <= {0.0, 1.0}:
        return found
    gained = tuple(name for name, a, b in zip(ids, ours, theirs, strict=True) if a > b)
    lost = tuple(name for name, a, b in zip(ids, ours, theirs, strict=True) if a < b)
    return replace(found, p=sign_test(len(gained), len(lost)), gained=gained, lost=lost)


def _of_wholes(
    task: str, names: tuple[str, str], pairs: Sequence[tuple[Outcome, Outcome]], metrics: Sequence[str]
) -> Iterator[Difference]:
    """See `translation`."""
    if not metrics or not pairs:
        return
    ours, theirs = ([one.text for one in side] for side in zip(*pairs, strict=True))
    references = [[*one.right] for one, _ in pairs]
    how = tokenize_of(references)
    scores = [translation_scores(texts, references, how) for texts in (ours, theirs)]
    gains = translation_gain([ours], [theirs], references, how)
    for metric in metrics:
        yield Difference(task, "", metric, *names, len(pairs), scores[0][metric], scores[1][metric], gains[metric])
