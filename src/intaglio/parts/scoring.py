"""Attention as it was when decoders were recurrent: at each step a look back over the whole source, in four steps.

1. `score`: what each place of the source is worth to the state that asks.
2. `weigh`: scores to weights that are positive and add up to 1; padded places get exactly 0.
3. `blend`: the weighted sum of the source's states, the context.
4. `fuse`: the context stands beside what the decoder has itself; `ScoringSpec.fusion` says where.

Legend: B batch, T steps of the target, S places of the source, H features of a state that asks, M features of a state
of the source, K features of what is scored.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from intaglio.specs import ScoringSpec

__all__ = ["Additive", "Attention", "Dot", "General", "Looked", "blend", "build_scoring", "fuse", "weigh"]


@dataclass(frozen=True)
class Looked:
    """What there is to look at: a batch of sources.

    Attributes:
        states: (B, S, M), 0 behind each source's end.
        keys: (B, S, K), what is scored: made of the states once, whatever is asked of them.
        real: (B, S), False behind each source's end.
    """

    states: Tensor
    keys: Tensor
    real: Tensor

    def take(self, rows: Tensor) -> "Looked":
        """Row i becomes what row `rows[i]` was; a row may be taken more than once."""
        states, real = self.states[rows], self.real[rows]
        return Looked(states, states if self.keys is self.states else self.keys[rows], real)


class Additive(nn.Module):
    """v tanh(W h + U m): a small network of its own (Bahdanau et al. 2014, arXiv 1409.0473, appendix A.1.2)."""

    def __init__(self, hidden_size: int, memory_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden_size, hidden_size, bias=False)  # W
        self.key = nn.Linear(memory_size, hidden_size, bias=False)  # U
        self.vector = nn.Linear(hidden_size, 1, bias=False)  # v

    def keys(self, states: Tensor) -> Tensor:
        """U m: (B, S, M) -> (B, S, H)"""
        keys: Tensor = self.key(states)
        return keys

    def score(self, query: Tensor, keys: Tensor) -> Tensor:
        """(B, T, H) and keys -> (B, T, S)"""
        both = self.query(query)[:, :, None] + keys[:, None]  # (B, T, S, H)
        scores: Tensor = self.vector(torch.tanh(both))[..., 0]
        return scores


class Dot(nn.Module):
    """h m: alike is near (Luong et al. 2015, arXiv 1508.04025, equation 8)."""

    def keys(self, states: Tensor) -> Tensor:
        """The states themselves, (B, S, H)."""
        return states

    def score(self, query: Tensor, keys: Tensor) -> Tensor:
        """(B, T, H) and keys -> (B, T, S)"""
        return query @ keys.transpose(1, 2)


class General(Dot):
    """h W m: alike once one side is turned by W (ibid.)."""

    def __init__(self, hidden_size: int, memory_size: int) -> None:
        super().__init__()
        self.key = nn.Linear(memory_size, hidden_size, bias=False)  # W

    def keys(self, states: Tensor) -> Tensor:
        """W m: (B, S, M) -> (B, S, H)"""
        keys: Tensor = self.key(states)
        return keys


def build_scoring(spec: ScoringSpec, hidden_size: int, memory_size: int) -> Additive | Dot | General:
    """The scoring that `spec` names."""
    match spec.score:
        case "additive":
            return Additive(hidden_size, memory_size)
        case "dot":
            return Dot()
        case "general":
            return General(hidden_size, memory_size)


def weigh(scores: Tensor, real: Tensor) -> Tensor:
    """Scores (B, T, S) to weights, over the places that are `real` (B, S); all 0 for a source without any."""
    padded = ~real[:, None]  # (B, 1, S)
    lowest = torch.finfo(scores.dtype).min  # not -inf, over which nothing but padding would have no softmax
    return scores.masked_fill(padded, lowest).softmax(dim=-1).masked_fill(padded, 0.0)


def blend(weights: Tensor, states: Tensor) -> Tensor:
    """The context: (B, T, S) and (B, S, M) -> (B, T, M)"""
    return weights @ states


def fuse(own: Tensor, context: Tensor) -> Tensor:
    """Both side by side, for the matrix behind to mix."""
    return torch.cat([own, context], dim=-1)


class Attention(nn.Module):
    """The four steps; what comes before and behind them is the decoder's."""

    def __init__(self, spec: ScoringSpec, hidden_size: int, memory_size: int) -> None:
        super().__init__()
        self.scoring = build_scoring(spec, hidden_size, memory_size)

    def look_at(self, states: Tensor, real: Tensor) -> Looked:
        """Sources made ready to be asked: (B, S, M), and which of their places are real (B, S)."""
        return Looked(states, self.scoring.keys(states), real)

    def forward(self, query: Tensor, looked: Looked, own: Tensor) -> tuple[Tensor, Tensor]:
        """Asks with every state in `query` (B, T, H), and fuses what it gets with `own` (B, T, ...).

        Returns:
            fused (B, T, ... + M), and the weights (B, T, S).
        """
        scores = self.scoring.score(query, looked.keys)
        weights = weigh(scores, looked.real)
        context = blend(weights, looked.states)
        return fuse(own, context), weights
