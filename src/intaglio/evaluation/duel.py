"""Two models on the same prompts, item by item: who wins, by one of three referees.

- a score of each answer (a reward model's, say): the higher one wins;
- a judge, who reads both answers in both orders: whoever it prefers in both wins; one that turns with the order has
  preferred a place, and that is a tie (Zheng et al. 2023, arXiv 2306.05685, section 3.4);
- the right answers: whoever finds them likelier wins, and nobody writes.

A judge is not asked about answers that are the same text: they are a tie.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from intaglio.data.preferences import Said
from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.evaluation.journal import Journal
from intaglio.evaluation.judge import Judge, favour_of_first
from intaglio.evaluation.preference import Contest
from intaglio.evaluation.significance import sign_test
from intaglio.evaluation.subjects.subject import Answer, Likelihood, Prompt, Subject, Unanswered

__all__ = ["Bout", "Duel", "JudgeReferee", "Question", "Referee", "ScoreReferee", "duel", "likelihood_duel"]

TIE: Final = 0.5


@dataclass(frozen=True)
class Question:
    """What both are asked.

    Attributes:
        id: for people.
        prompt: a text to be continued, or a chat.
        right: right answers; only `likelihood_duel` needs them.
        fields: whatever else is known of it, for scores that ask for it.
    """

    id: str
    prompt: Prompt
    right: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bout:
    """One item.

    Attributes:
        id: the question's.
        points: 1 where we win, 0.5 for a tie, 0 where they do; None where one of the two did not answer.
        ours, theirs: answers.
        marks: what the referee went by: both scores, our chances in both orders, or both likelihoods.
        turned: whether it was a tie because the judge turned with the order.
        reason: why nobody answered, or why the judge said nothing.
    """

    id: str
    points: float | None
    ours: str = ""
    theirs: str = ""
    marks: tuple[float, ...] = ()
    turned: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Duel:
    """All bouts."""

    bouts: tuple[Bout, ...]

    @property
    def decided(self) -> list[Bout]:
        """Those with an answer on both sides."""
        return [bout for bout in self.bouts if bout.points is not None]

    @property
    def contest(self) -> Contest:
        """Wins, ties, losses and the rate."""
        return Contest(np.array([bout.points for bout in self.decided], dtype=np.float64))

    def as_json(self) -> dict[str, Any]:
        """Figures: `rate` is a mean with its 95 % interval, `p` that of the sign test, ties left out."""
        contest, missing = self.contest, [bout for bout in self.bouts if bout.points is None]
        score = {"wins": contest.wins, "ties": contest.ties, "losses": contest.losses}
        sure = {"rate": [*contest.rate], "p": sign_test(contest.wins, contest.losses)} if len(contest.points) else {}
        turned = sum(bout.turned for bout in self.bouts)
        unanswered = [{"id": bout.id, "reason": bout.reason} for bout in missing]
        return {"items": len(contest.points), **score, **sure, "turned_by_order": turned, "unanswered": unanswered}


class Referee(Protocol):
    """Says who wins."""

    name: str

    def __call__(self, questions: Sequence[Question], ours: Sequence[str], theirs: Sequence[str]) -> list[Bout]:
        """A bout for each question."""


class ScoreReferee:
    """The higher score wins.

    Args:
        name: for people.
        score: of answers to questions, one each; NaN where there is none.
        within: scores that are no further apart are a tie.
    """

    def __init__(
        self, name: str, score: Callable[[Sequence[Question], Sequence[str]], Sequence[float]], within: float = 0.0
    ) -> None:
        self.name, self._score, self._within = name, score, within

    def __call__(self, questions: Sequence[Question], ours: Sequence[str], theirs: Sequence[str]) -> list[Bout]:
        """See `Referee`."""
        found = self._score([*questions, *questions], [*ours, *theirs])
        rows = zip(questions, ours, theirs, found[: len(questions)], found[len(questions) :], strict=True)
        return [self._bout(*row) for row in rows]

    def _bout(self, question: Question, mine: str, other: str, high: float, low: float) -> Bout:
        if math.isnan(high) or math.isnan(low):
            return Bout(question.id, None, mine, other, reason=f"{self.name} has no score for it")
        return Bout(question.id, _points(high - low, self._within), mine, other, (high, low))


class JudgeReferee:
    """Whoever a judge prefers in both orders wins.

    Args:
        name: for people.
        judge: a chat model that tells its likeliest first tokens.
    """

    def __init__(self, name: str, judge: Judge) -> None:
        self.name, self._judge = name, judge

    def __call__(self, questions: Sequence[Question], ours: Sequence[str], theirs: Sequence[str]) -> list[Bout]:
        """See `Referee`."""
        return [self._bout(*row) for row in zip(questions, ours, theirs, strict=True)]

    def _bout(self, question: Question, mine: str, other: str) -> Bout:
        if mine.strip() == other.strip():
            return Bout(question.id, TIE, mine, other)
        asked: Said = question.prompt if isinstance(question.prompt, str) else tuple(question.prompt)
        ahead = favour_of_first(self._judge, asked, mine, other)
        behind = favour_of_first(self._judge, asked, other, mine)
        if ahead is None or behind is None:
            return Bout(question.id, None, mine, other, reason=f"{self.name} names neither answer")
        chances = (ahead, 1 - behind)
        points = {_points(chance - 0.5) for chance in chances}
        agreed = points.pop() if len(points) == 1 else TIE
        return Bout(question.id, agreed, mine, other, chances, turned=(ahead - 0.5) * (0.5 - behind) < 0)


def duel(
    questions: Sequence[Question],
    ours: Subject,
    theirs: Subject,
    referee: Referee,
    params: SamplingParams,
    journal: Journal,
    *,
    batch: int = 16,
    done: Callable[[int], None] = lambda count: None,
) -> Duel:
    """Has both answer what the journal does not know yet, and the referee compare.

    Args:
        questions: not empty.
        ours, theirs: the models.
        referee: compares.
        params: how both answer.
        journal: gets every bout as soon as it is decided.
        batch: questions at a time.
        done: told how many are decided.

    Raises:
        UserError: a prompt cannot be put, or the referee does not work.
        SubjectGoneError: there is nobody to ask any more; the same call goes on where it ended.
    """

    def some(asked: Sequence[Question]) -> list[Bout]:
        prompts = [question.prompt for question in asked]
        return _bouts(asked, ours.answers(prompts, params), theirs.answers(prompts, params), referee)

    return _played(questions, some, journal, batch, done)


def likelihood_duel(
    questions: Sequence[Question],
    ours: Subject,
    theirs: Subject,
    journal: Journal,
    *,
    within: float = 0.0,
    batch: int = 16,
    done: Callable[[int], None] = lambda count: None,
) -> Duel:
    """The likelier the right answer, the better: of several, the one that each finds likeliest.

    The whole text's ln p is compared, not a token's: both models pay for the same characters, whatever their tokens.

    Args:
        questions: each with a right answer; texts, not chats.
        within: nats that are no difference.
        ours, theirs, journal, batch, done: as above.

    Raises:
        UserError: a question is a chat, or has no right answer.
        SubjectGoneError: see above.
    """

    def some(asked: Sequence[Question]) -> list[Bout]:
        pairs = [pair for question in asked for pair in _pairs(question)]
        mine, others = iter(ours.likelihoods(pairs)), iter(theirs.likelihoods(pairs))
        return [
            _likelier(question, *([next(told) for _ in question.right] for told in (mine, others)), within=within)
            for question in asked
        ]

    return _played(questions, some, journal, batch, done)


def _played(
    questions: Sequence[Question],
    some: Callable[[Sequence[Question]], list[Bout]],
    journal: Journal,
    batch: int,
    done: Callable[[int], None],
) -> Duel:
    while (start := len(journal.entries)) < len(questions):
        done(start)
        for bout in some(questions[start : start + batch]):
            journal.add(asdict(bout))
    done(len(questions))
    return Duel(tuple(_read(entry) for entry in journal.entries))


def _read(entry: Mapping[str, Any]) -> Bout:
    return Bout(**{**entry, "marks": tuple(entry["marks"])})


def _bouts(
    questions: Sequence[Question],
    ours: Sequence[Answer | Unanswered],
    theirs: Sequence[Answer | Unanswered],
    referee: Referee,
) -> list[Bout]:
    """In order; the referee reads only what both have answered."""
    rows = [*zip(questions, ours, theirs, strict=True)]
    whole = [(q, a.text, b.text) for q, a, b in rows if isinstance(a, Answer) and isinstance(b, Answer)]
    asked, mine, other = ([row[0] for row in whole], [row[1] for row in whole], [row[2] for row in whole])
    found = iter(referee(asked, mine, other) if whole else [])
    return [_missing(q, a, b) or next(found) for q, a, b in rows]


def _missing(question: Question, *told: object) -> Bout | None:
    reasons = [one.reason for one in told if isinstance(one, Unanswered)]
    return Bout(question.id, None, reason=reasons[0]) if reasons else None


def _pairs(question: Question) -> list[tuple[str, str]]:
    if not isinstance(question.prompt, str) or not question.right:
        what = "has no right answer" if isinstance(question.prompt, str) else "is a chat, and no text to continue"
        raise UserError(what, where=question.id, mend="let a judge or a reward compare what is written")
    return [(question.prompt, right) for right in question.right]


def _likelier(
    question: Question,
    ours: Sequence[Likelihood | Unanswered],
    theirs: Sequence[Likelihood | Unanswered],
    *,
    within: float,
) -> Bout:
    missing = _missing(question, *ours, *theirs)
    if missing:
        return missing
    mine, other = (max(one.nats for one in told if isinstance(one, Likelihood)) for told in (ours, theirs))
    return Bout(question.id, _points(mine - other, within), marks=(mine, other))


def _points(gap: float, within: float = 0.0) -> float:
    return TIE if abs(gap) <= within else float(gap > 0)
