"""Odds ratio preference optimisation (Hong, Lee and Thorne 2024, arXiv 2403.07691): fine-tuning and preference in one.

With p(y) = exp(mean over y's tokens of log pi(token)) and odds(y) = p(y) / (1 - p(y)):

    L = NLL(chosen)  -  beta log sigmoid( log odds(chosen) - log odds(rejected) )          equations 6 and 7

There is no reference. The first term is next-token loss of the chosen answer, a mean over the tokens of the whole
step; as in the authors' code and TRL's the prompt's tokens count among them, unless `nll` says `completion`. The second
is a mean over pairs; the paper calls its weight lambda.

Legend: D pairs, n scored tokens, m tokens of prompts, E features.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio.models.decoder import Decoder
from intaglio.training.batching.batches import Batch
from intaglio.training.batching.forks import ForkedBatch
from intaglio.training.objectives.branches import fork_states, scored_log_probs, token_metrics
from intaglio.training.objectives.metrics import Mean
from intaglio.training.objectives.mixtures import balance
from intaglio.training.objectives.objective import Loss
from intaglio.training.objectives.preference_metrics import pair_metrics

__all__ = ["ORPO", "NLLOver", "ORPOBatch", "log1mexp", "log_odds", "orpo_batches"]

NLLOver = Literal["all", "completion"]

_LEAST = 1e-10


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - e^x) for x <= 0, in fp32 at least (Maechler 2012, "Accurately computing log(1 - exp(-|a|))").

    Near 0 `1 - e^x` rounds to 0, far from it `e^x` rounds away; the two forms change places at -ln 2. What is nearer to
    0 than 1e-10 is rounding and counts as that, without a gradient: a certain answer has finite odds.
    """
    x = x.clamp(max=-_LEAST)
    near = x > -math.log(2)
    # where() sends gradients through both sides, so that each is given only what it can take
    by_expm1 = torch.log(-torch.expm1(torch.where(near, x, -1.0)))
    by_log1p = torch.log1p(-torch.exp(torch.where(near, -1.0, x)))
    return torch.where(near, by_expm1, by_log1p)


def log_odds(mean_log_probs: Tensor) -> Tensor:
    """log of p / (1 - p), from log p (...)."""
    return mean_log_probs - log1mexp(mean_log_probs)


@dataclass(frozen=True)
class ORPOBatch(ForkedBatch):
    """Pairs, and what a mean over tokens is in a sum over pairs.

    Attributes:
        nll_share: weight of the pairs for each token of the first term, over the whole optimizer step. The loop divides
            by the pairs, so a sum over tokens times this becomes their mean.
    """

    nll_share: float


def orpo_batches(batches: Sequence[Batch], over: NLLOver) -> list[ORPOBatch]:
    """The pairs of one optimizer step, or of one evaluation, with the share that its tokens have."""
    forks = [batch for batch in batches if isinstance(batch, ForkedBatch)]
    tokens = sum(int((batch.owners % 2 == 0).sum()) + len(_beside(batch, over)[0]) for batch in forks)
    share = sum(batch.num_targets for batch in forks) / max(tokens, 1)
    return [ORPOBatch(**_values(batch), nll_share=share) for batch in forks]


def _values(batch: ForkedBatch) -> dict[str, Any]:
    return {field.name: getattr(batch, field.name) for field in fields(ForkedBatch)}


class ORPO:
    """A loss over pairs; its targets are the pairs, by their weights, which are those of the second term.

    Args:
        beta: weight of the second term.
        nll: whether the first counts the prompt's tokens too.
        chunk: tokens whose logits exist at once.
    """

    def __init__(self, beta: float = 0.1, nll: NLLOver = "all", chunk: int = 1024) -> None:
        self.beta, self.nll, self.chunk = beta, nll, chunk

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        """See `Objective`."""
        assert isinstance(model, Decoder)
        assert isinstance(batch, ORPOBatch)
        hidden = fork_states(model, batch)  # (N, E)
        more, asked = _beside(batch, self.nll)  # (m,)
        places, targets = torch.cat((batch.places, more)), torch.cat((batch.targets, asked))
        log_probs = scored_log_probs(model, hidden, places, targets, self.chunk)  # (n + m,)
        tokens, prompts = log_probs.split((len(batch.places), len(more)))
        means = (batch.by_branch(tokens) / batch.lengths.clamp(min=1)).view(-1, 2)  # (D, 2), chosen and rejected
        nll = -torch.cat((tokens[batch.owners % 2 == 0], prompts))
        odds = log_odds(means)
        log_odds_chosen = odds[:, 0] - odds[:, 1]  # (D,)
        ratio = F.logsigmoid(log_odds_chosen)
        total = nll.sum() * batch.nll_share - self.beta * (ratio * batch.weights).sum()
        metrics = pair_metrics(self.beta * means, means)
        metrics |= {
            "nll_loss": Mean.of(nll),
            "log_odds_ratio": Mean.of(ratio),
            "log_odds_chosen": Mean.of(log_odds_chosen),
        }
        if not model.training:
            chosen = torch.arange(len(batch.ends), device=hidden.device) % 2 == 0
            metrics |= token_metrics(model, hidden, batch, chosen, self.chunk)
        extra, experts = balance(model)
        return Loss(total, extra, metrics, experts)


def _beside(batch: ForkedBatch, over: NLLOver) -> tuple[Tensor, Tensor]:
    """What the first term has beside the answers: places of the prompts (m,), and the tokens they predict (m,)."""
    lengths = [fork[0] for fork in batch.forks] if over == "all" else [0] * len(batch.forks)
    starts = accumulate(batch.documents, initial=0)
    places = torch.cat(
        [start + torch.arange(max(length - 1, 0)) for start, length in zip(starts, lengths, strict=False)]
    )
    places = places.to(batch.ids.device)
    return places, batch.ids[0, places + 1]
