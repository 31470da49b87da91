"""Held-out pairs before and after a training: how many are told apart rightly, by reward or by likelihood.

Legend: D pairs, b = 2 D answers.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from intaglio.data.packing import Method
from intaglio.data.store import Store
from intaglio.evaluation.intervals import bootstrap_mean
from intaglio.evaluation.preference import more_right
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier, decoder_of
from intaglio.training.batching.forks import ForkedBatch, make_forked
from intaglio.training.batching.preferences import forked_documents
from intaglio.training.measuring.measure_specs import PairsSpec
from intaglio.training.objectives.branches import branch_log_probs
from intaglio.training.objectives.reward import branch_rewards

__all__ = ["PairExam", "compare_pairs"]

_CHUNK = 1024


class PairExam:
    """Held-out pairs of one run.

    Args:
        spec: how they are read.
        store: of documents that fork in two.
        micro_batch, room, packing: see `forked_documents`.
    """

    def __init__(self, spec: PairsSpec, store: Store, micro_batch: int, room: int, packing: Method) -> None:
        self.spec = spec
        self._batches = [*map(make_forked, forked_documents(store, micro_batch, room, packing))] if len(store) else []

    @torch.no_grad()
    def take(self, model: nn.Module) -> list[float]:
        """By how much the better answer of each pair is above the other one: (D,); the model trains on afterwards.

        Args:
            model: a decoder, or one with a single score.
        """
        training, device = model.training, decoder_of(model).embed_tokens.weight.device
        model.eval()
        margins = (margin for batch in self._batches for margin in self._margins(model, batch.to(device)))
        found = [*islice(margins, self.spec.rows)]
        model.train(training)
        return found

    def _margins(self, model: nn.Module, batch: Any) -> Iterator[float]:
        values = self._values(model, batch).view(-1, 2)  # (D, 2), chosen and rejected
        return iter((values[:, 0] - values[:, 1]).tolist())

    def _values(self, model: nn.Module, batch: ForkedBatch) -> Tensor:
        """What the model gives each answer: (b,)"""
        if isinstance(model, SequenceClassifier):
            return branch_rewards(model, batch)
        assert isinstance(model, Decoder)
        sums = branch_log_probs(model, batch, _CHUNK)
        return sums / batch.lengths.clamp(min=1) if self.spec.by == "mean" else sums


def compare_pairs(before: Sequence[float] | None, after: Sequence[float], say: Callable[[str], None]) -> dict[str, Any]:
    """Prints the share of pairs that were told apart rightly, and the gain; returns it as data.

    Args:
        before: None of a model that had learned nothing before.
        after: (D,) margins.
        say: told.
    """
    report: dict[str, Any] = {"rows": len(after)}
    say(f"pairs told apart rightly, of {len(after)} held out")
    for name, margins in {"before": before, "after": after}.items():
        if margins is None:
            continue
        mean, low, high = bootstrap_mean([margin > 0 for margin in margins])
        report[name] = {"accuracy": mean, "low": low, "high": high}
        say(f"  {name:24} {mean:6.1%}  [{low:.1%}, {high:.1%}]")
    if before is not None:
        mean, low, high = more_right(after, before)
        report["gain"] = {"difference": mean, "low": low, "high": high}
        say(f"  gain {mean:+.1%}  [{low:+.1%}, {high:+.1%}]")
    return report
