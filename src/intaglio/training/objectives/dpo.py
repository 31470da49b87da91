"""Direct preference optimisation (Rafailov et al. 2023, arXiv 2305.18290), and losses of the same two numbers.

With h = log pi(y | x) - log pi_ref(y | x), the log ratio of an answer, and delta = h(chosen) - h(rejected):

    sigmoid       -log sigmoid(beta delta)                      DPO, equation 7
    cdpo          -(1 - e) log sigmoid(beta delta) - e log sigmoid(-beta delta)
                                                                Mitchell 2023, a share e of the labels is wrong
    robust        [-(1 - e) log sigmoid(beta delta) + e log sigmoid(-beta delta)] / (1 - 2 e)
                                                                Chowdhury et al. 2024, arXiv 2403.00409
    hinge         max(0, 1 - beta delta)                        SLiC, Zhao et al. 2023, arXiv 2305.10425
    ipo           (delta' - 1 / (2 beta))^2                     Azar et al. 2023, arXiv 2310.12036, equation 17
    sigmoid_norm  -log sigmoid(beta delta')

delta' takes each log ratio as a mean over the tokens of its answer that are scored. IPO's paper writes sums; its
authors averaged, as TRL does, or the loss would grow with the square of the length (OpenRLHF sums). We divide by the
tokens that were scored, where TRL counts a first token that nothing stands before.

The reward that a policy implies is beta h (equation 5), up to what depends on the prompt alone; rewards/chosen is that.

Legend: D pairs, b = 2 D answers, n scored tokens, E features.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio.models.decoder import Decoder
from intaglio.training.batching.batches import Batch
from intaglio.training.batching.forks import ForkedBatch
from intaglio.training.objectives.branches import fork_states, scored_log_probs, token_metrics
from intaglio.training.objectives.mixtures import balance
from intaglio.training.objectives.objective import Loss
from intaglio.training.objectives.preference_metrics import pair_metrics
from intaglio.training.reference import Reference

__all__ = ["DPO", "PairLoss", "cdpo", "hinge", "ipo", "preference_loss", "robust", "sigmoid"]

PairLoss = Literal["sigmoid", "cdpo", "robust", "hinge", "ipo", "sigmoid_norm"]


def sigmoid(delta: Tensor, beta: float) -> Tensor:
    """DPO: (D,) -> (D,)"""
    return -F.logsigmoid(beta * delta)


def cdpo(delta: Tensor, beta: float, smoothing: float) -> Tensor:
    """DPO where a share `smoothing` of the labels is taken for wrong: (D,) -> (D,)"""
    return (1 - smoothing) * sigmoid(delta, beta) + smoothing * sigmoid(-delta, beta)


def robust(delta: Tensor, beta: float, smoothing: float) -> Tensor:
    """The same without bias: its mean over flipped labels is DPO's loss of the true ones. (D,) -> (D,)"""
    return ((1 - smoothing) * sigmoid(delta, beta) - smoothing * sigmoid(-delta, beta)) / (1 - 2 * smoothing)


def hinge(delta: Tensor, beta: float) -> Tensor:
    """SLiC's, on log ratios: (D,) -> (D,)"""
    return torch.relu(1 - beta * delta)


def ipo(delta: Tensor, beta: float) -> Tensor:
    """IPO: a margin to be met, not passed. (D,) -> (D,)"""
    return (delta - 1 / (2 * beta)).square()


def preference_loss(kind: PairLoss, ratios: Tensor, lengths: Tensor, beta: float, smoothing: float = 0.0) -> Tensor:
    """The loss of each pair, (D,).

    Args:
        kind: which.
        ratios: (D, 2), h of chosen and rejected, summed over tokens.
        lengths: (D, 2), scored tokens of each.
        beta: how far the policy is held to the reference; of `ipo` the paper's tau.
        smoothing: e, of `cdpo` and `robust`.
    """
    sums, means = _difference(ratios), _difference(ratios / lengths.clamp(min=1))
    losses: dict[PairLoss, Callable[[], Tensor]] = {
        "sigmoid": lambda: sigmoid(sums, beta),
        "cdpo": lambda: cdpo(sums, beta, smoothing),
        "robust": lambda: robust(sums, beta, smoothing),
        "hinge": lambda: hinge(sums, beta),
        "ipo": lambda: ipo(means, beta),
        "sigmoid_norm": lambda: sigmoid(means, beta),
    }
    return losses[kind]()


def _difference(pairs: Tensor) -> Tensor:
    """(D, 2) -> (D,)"""
    return pairs[:, 0] - pairs[:, 1]


class DPO:
    """A loss over pairs; its targets are the pairs, by their weights.

    Args:
        reference: what the policy is held to.
        loss: which of those above.
        beta: see `preference_loss`.
        smoothing: see `preference_loss`.
        chunk: tokens whose logits exist at once.
    """

    def __init__(
        self,
        reference: Reference,
        loss: PairLoss = "sigmoid",
        beta: float = 0.1,
        smoothing: float = 0.0,
        chunk: int = 1024,
    ) -> None:
        self.reference, self.loss, self.beta, self.smoothing, self.chunk = reference, loss, beta, smoothing, chunk

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        """See `Objective`."""
        assert isinstance(model, Decoder)
        assert isinstance(batch, ForkedBatch)
        expected = self.reference.log_probs(model, batch).view(-1, 2)  # (D, 2), chosen and rejected
        hidden = fork_states(model, batch)  # (N, E)
        tokens = scored_log_probs(model, hidden, batch.places, batch.targets, self.chunk)  # (n,)
        log_probs = batch.by_branch(tokens).view(-1, 2)
        ratios = log_probs - expected
        losses = preference_loss(self.loss, ratios, batch.lengths.view(-1, 2), self.beta, self.smoothing)  # (D,)
        metrics = pair_metrics(self.beta * ratios, log_probs)
        if not model.training:
            chosen = torch.arange(len(batch.ends), device=hidden.device) % 2 == 0
            metrics |= token_metrics(model, hidden, batch, chosen, self.chunk)
        extra, experts = balance(model)
        return Loss((losses * batch.weights).sum(), extra, metrics, experts)

    def state(self) -> dict[str, Tensor]:
        """The reference's."""
        return self.reference.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        """See `Reference.load_state`."""
        self.reference.load_state(state)
