"""Beam search: the likeliest texts found when, at every step, the best few beginnings are kept.

A text that has ended is worth log P / length^penalty (Wu et al. 2016, arXiv 1609.08144, section 7, without their
constants): without it, or with a penalty of 0, short texts win, each further token costing something. How many
candidates are looked at, and when the search ends, is as in transformers.

Legend: B prompts, K beams of each, V vocabulary.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from intaglio.engine.sampling_params import SamplingParams
from intaglio.engine.session import Session

__all__ = ["Hypothesis", "beam_search"]

_IMPOSSIBLE = -1e9


@dataclass(frozen=True)
class Hypothesis:
    """A text that was found.

    Attributes:
        ids: its tokens, the one that ended it included.
        log_probs: of each.
        score: what it was ranked by: their sum over length^penalty.
    """

    ids: list[int]
    log_probs: list[float]
    score: float


@torch.inference_mode()
def beam_search(
    session: Session,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    ends: Collection[int],
    max_tokens: Sequence[int],
) -> list[list[Hypothesis]]:
    """The best texts for each prompt, the best first.

    Args:
        session: fresh.
        prompts: ids, none of them empty.
        params: `num_beams`, `length_penalty`, `early_stopping` and `forbidden_token_ids`.
        ends: tokens that end a text.
        max_tokens: of each text at most.
    """
    rows = [_Row(params, ends, most) for most in max_tokens]
    logits = session.prefill(prompts)  # (B, V)
    taken = torch.arange(len(rows), device=logits.device).repeat_interleave(params.num_beams)  # (B * K,)
    session.reorder(taken)
    logits = logits[taken]
    while True:
        origins, tokens = _advance(rows, logits, params)
        if not any(row.open for row in rows):
            return [row.found for row in rows]
        session.reorder(origins.to(logits.device))
        logits = session.step(tokens.to(logits.device))


def _advance(rows: list["_Row"], logits: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Logits (B * K, V) -> which beam of the batch goes on, and with which token: (B * K,) each."""
    beams, vocab = params.num_beams, logits.shape[-1]
    scores = logits.float().log_softmax(dim=-1)
    scores[:, list(params.forbidden_token_ids)] = float("-inf")
    scores = scores + torch.tensor([beam.score for row in rows for beam in row.beams], device=logits.device)[:, None]
    best = scores.view(len(rows), -1).topk(min(rows[0].candidates, beams * vocab))  # (B, candidates)
    origins, tokens = [], []
    for number, row in enumerate(rows):
        chosen = zip(best.values[number].tolist(), best.indices[number].tolist(), strict=True)
        row.take([(score, *divmod(index, vocab)) for score, index in chosen])
        origins += [number * beams + beam.origin for beam in row.beams]
        tokens += [beam.ids[-1] for beam in row.beams]
    return torch.tensor(origins), torch.tensor(tokens)


@dataclass
class _Beam:
    """A beginning: its score is its log-probability; `origin` is the place it had a step before."""

    ids: list[int]
    log_probs: list[float]
    score: float
    origin: int = 0

    def grown(self, token: int, score: float, origin: int) -> "_Beam":
        """With one token more."""
        return _Beam([*self.ids, token], [*self.log_probs, score - self.score], score, origin)


@dataclass
class _Row:
    """The search for one prompt."""

    params: SamplingParams
    ends: Collection[int]
    max_tokens: int
    open: bool = True
    beams: list[_Beam] = field(init=False)
    found: list[Hypothesis] = field(default_factory=list)

    def __post_init__(self) -> None:
        # all beams begin alike, so only the first may go on
        self.beams = [_Beam([], [], 0.0 if k == 0 else _IMPOSSIBLE) for k in range(self.params.num_beams)]

    @property
    def candidates(self) -> int:
        """As many as leave a full set of beams when every one of the best has ended."""
        return max(2, 1 + len(self.ends)) * self.params.num_beams

    @property
    def full(self) -> bool:
        return len(self.found) == self.params.num_beams

    def take(self, candidates: list[tuple[float, int, int]]) -> None:
        """One step: candidates are (log-probability, beam, token), the best first."""
        grown = [self.beams[k].grown(token, score, k) for score, k, token in candidates]
        last = len(grown[0].ids) == self.max_tokens
        if self.open:
            ended = [beam for beam in grown[: self.params.num_beams] if last or beam.ids[-1] in self.ends]
            self._keep([beam for beam in ended if beam.score > _IMPOSSIBLE / 2])
        going = [beam for beam in grown if beam.ids[-1] not in self.ends]
        self.beams = going[: self.params.num_beams]
        self.open = self.open and not last and self._can_improve()

    def _keep(self, ended: list[_Beam]) -> None:
        new = [Hypothesis(beam.ids, beam.log_probs, self._worth(beam)) for beam in ended]
        best = sorted([*self.found, *new], key=lambda found: -found.score)
        self.found = best[: self.params.num_beams]

    def _worth(self, beam: _Beam) -> float:
        return beam.score / len(beam.ids) ** self.params.length_penalty

    def _can_improve(self) -> bool:
        """Whether the best beginning, were it to end here, would still find a place."""
        if not self.full:
            return True
        return not self.params.early_stopping and self._worth(self.beams[0]) > self.found[-1].score
