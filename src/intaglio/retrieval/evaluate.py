"""A set of questions asked of an index: how much of what is right is found, and how good and how quick answers are."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intaglio.evaluation.intervals import bootstrap_mean
from intaglio.evaluation.metrics import exact_match, f1, normalise
from intaglio.retrieval.answer import Answer, Grounding, answer
from intaglio.retrieval.answerers import Answerer
from intaglio.retrieval.measures import first_rank, support
from intaglio.retrieval.questions import Question
from intaglio.retrieval.search import Hit, Reranker, Searcher
from intaglio.retrieval.threshold import SEEN, strength, threshold

__all__ = ["evaluate_answers", "evaluate_search"]


def evaluate_search(
    searcher: Searcher,
    questions: Sequence[Question],
    k: int = 5,
    *,
    dense: bool = True,
    sparse: bool = True,
    rerank: Reranker | None = None,
) -> dict[str, Any]:
    """How well the right files are found; see `measures.first_rank`.

    Returns:
        of the questions with files `recall` (the share with a right file among the first k passages) with the ends of
        its interval, `mrr`, and `misses`, the questions without; `latency_s` of a search. Where meaning and words are
        both searched also `threshold`, `refused` (the share of the questions with files that are taken for not in the
        documents) and `strangers_refused` (the same of those without). None for what there are no questions for.
    """
    searches = [_timed(searcher, q, k, dense=dense, sparse=sparse, rerank=rerank) for q in questions]
    pairs = [(q, hits) for q, (hits, _) in zip(questions, searches, strict=True)]
    ranks = {q.question: first_rank([hit.chunk.file for hit in hits[:k]], q.files) for q, hits in pairs if q.files}
    return {
        "questions": len(questions),
        "k": k,
        **_recall(list(ranks.values())),
        **(_refusals(threshold(searcher), pairs) if dense and sparse else {}),
        "latency_s": _spread([seconds for _, seconds in searches]),
        "misses": [question for question, rank in ranks.items() if rank is None],
    }


def evaluate_answers(
    grounding: Grounding, questions: Sequence[Question], model: Answerer, max_tokens: int = 256
) -> dict[str, Any]:
    """How good the answers are.

    Returns:
        of the questions with short answers `exact_match`, `f1` and `contains` (the share of answers in which a short
        answer stands); of all that were answered `faithfulness` (see `measures.support`) and `cited` (the share with a
        citation); of all `not_found` (the share that was refused); `latency_s` of an answer; and the `answers`.
    """
    made: list[Answer] = []
    seconds = []
    for question in questions:
        start = time.perf_counter()
        made.append(answer(grounding, question.question, model, max_tokens))
        seconds.append(time.perf_counter() - start)
    return {
        **_against_references([(one.text, q.answers) for one, q in zip(made, questions, strict=True) if q.answers]),
        "faithfulness": _mean([_faithfulness(one) for one in made if one.found]),
        "cited": _mean([bool(one.citations) for one in made if one.found]),
        "not_found": _mean([not one.found for one in made]),
        "latency_s": _spread(seconds),
        "answers": [one.text for one in made],
    }


def _timed(searcher: Searcher, question: Question, k: int, **ways: Any) -> tuple[list[Hit], float]:
    start = time.perf_counter()
    hits = searcher.search(question.question, max(k, SEEN), **ways)
    return hits, time.perf_counter() - start


def _recall(ranks: Sequence[int | None]) -> dict[str, Any]:
    if not ranks:
        return {"recall": None, "recall_low": None, "recall_high": None, "mrr": None}
    mean, low, high = bootstrap_mean([rank is not None for rank in ranks])
    return {"recall": mean, "recall_low": low, "recall_high": high, "mrr": _mean([1 / r if r else 0 for r in ranks])}


def _refusals(limit: float, pairs: Sequence[tuple[Question, list[Hit]]]) -> dict[str, Any]:
    weak = [(bool(question.files), strength(hits) <= limit) for question, hits in pairs]
    return {
        "threshold": limit,
        "refused": _mean([is_weak for is_known, is_weak in weak if is_known]),
        "strangers_refused": _mean([is_weak for is_known, is_weak in weak if not is_known]),
    }


def _against_references(pairs: Sequence[tuple[str, Sequence[str]]]) -> dict[str, Any]:
    texts, references = [text for text, _ in pairs], [wanted for _, wanted in pairs]
    within = [any(normalise(one) in normalise(text) for one in wanted) for text, wanted in pairs]
    return {
        "exact_match": _mean(exact_match(texts, references)),
        "f1": _mean([f1(text, wanted) for text, wanted in pairs]),
        "contains": _mean(within),
    }


def _faithfulness(made: Answer) -> float:
    return support(made.text, [source.text for source in made.prompt.sources] if made.prompt else [])


def _mean(values: Sequence[float] | NDArray[np.bool_]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    return {"mean": float(np.mean(seconds)), "p50": float(np.median(seconds)), "p95": float(np.quantile(seconds, 0.95))}
