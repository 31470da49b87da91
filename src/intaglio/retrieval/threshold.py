"""When the documents do not hold the answer: how strong the best passage must be, measured for each index.

A hundred questions about everything under the sun (`strangers.yaml`) are asked of the index. Hardly any has an answer
in it, so their best passages show what chance brings. The threshold is what 95 % of them stay below. It is measured
with the index's own vectors and words, because what counts as near differs from one embedding model to the next, and
from one set of documents to the next. An index that is about a few of those walks of life loses nothing by that: the
5 % are for them.
"""

import os
from collections.abc import Sequence
from importlib.resources import files

import numpy as np
import yaml

from intaglio.files import read_json, write_json
from intaglio.retrieval.search import Hit, Searcher

__all__ = ["SEEN", "strength", "threshold"]

QUANTILE = 0.95
SEEN = 5
"""Passages that are asked how strong they are."""


def strength(hits: Sequence[Hit]) -> float:
    """How much the best of the first hits has to do with the question: the mean of its cosine and its share of words.

    0 to 1. The strongest need not stand first: the order comes from ranks, which say nothing of that.
    """
    return max(((hit.cosine + hit.share) / 2 for hit in hits[:SEEN]), default=0.0)


def threshold(searcher: Searcher) -> float:
    """The strength that strangers' questions stay below.

    Measured once for each version of an index, and kept in its directory where that can be written.
    """
    version, kept = searcher.index.version, searcher.index.path / "threshold.json"
    noted = read_json(kept) if kept.exists() else {}
    if noted.get("version") != version:
        noted = {"version": version, "threshold": _measured(searcher)}
        if os.access(kept.parent, os.W_OK):
            write_json(kept, noted)
    return float(noted["threshold"])


def _measured(searcher: Searcher) -> float:
    text = files("intaglio.retrieval").joinpath("strangers.yaml").read_text(encoding="utf-8")
    strengths = [strength(searcher.search(question, SEEN)) for question in yaml.safe_load(text)]
    return float(np.quantile(strengths, QUANTILE))
