"""What a policy says of the tokens of a rollout: how likely each is now, and what its critic expects there.

Legend: n tokens of all answers, N tokens of the micro-batch, E features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from intaglio.models.decoder import Decoder
from intaglio.models.heads import decoder_of
from intaglio.models.value import ActorCritic
from intaglio.parallel.vocabulary import output_matrix
from intaglio.parts.forked import Forked
from intaglio.training.objectives.branches import fork_states, scored_log_probs
from intaglio.training.objectives.token_logprobs import chunked_log_probs_and_entropies
from intaglio.training.rl.rollouts import RolloutBatch

__all__ = ["Actions", "Reader"]


@dataclass(frozen=True)
class Actions:
    """The tokens of a micro-batch under a policy.

    Attributes:
        log_probs: (n,) in fp32.
        entropies: (n,) without gradient, or empty.
        values: (n,) in fp32; empty without a critic.
        plain: (n,) log-probabilities at temperature 1, which the engine tells too; empty unless asked for.
    """

    log_probs: Tensor
    entropies: Tensor
    values: Tensor
    plain: Tensor


class Reader:
    """Reads rollouts.

    Args:
        temperature: divides the logits, as it did in sampling: what is learned is the policy that drew.
        chunk: see `chunked_log_probs`.
    """

    def __init__(self, temperature: float = 1.0, chunk: int = 1024) -> None:
        self.temperature, self.chunk = temperature, chunk

    def __call__(self, model: nn.Module, batch: RolloutBatch, *, plain: bool = False) -> Actions:
        """The batch's tokens under a `Decoder` or an `ActorCritic`; `plain` asks for temperature 1 too."""
        decoder = decoder_of(model)
        row = fork_states(decoder, batch)  # (N, E)
        weight, vocabulary = output_matrix(decoder.lm_head)
        told, entropies = chunked_log_probs_and_entropies(
            row[batch.places],
            weight,
            batch.targets,
            chunk=self.chunk,
            softcap=decoder.spec.logit_softcap,
            temperature=self.temperature,
            vocabulary=vocabulary,
        )
        values = told.new_empty(0)
        if isinstance(model, ActorCritic):
            values = model.values(row, batch.ids, batch.positions, Forked(batch.forks))[batch.places]
        return Actions(told, entropies, values, self._plain(decoder, row, batch, told) if plain else told[:0])

    @torch.no_grad()
    def log_probs(self, model: nn.Module, batch: RolloutBatch) -> Tensor:
        """(n,), the log-probabilities alone, without gradient: what a reference is asked for."""
        decoder = decoder_of(model)
        row = fork_states(decoder, batch)
        return scored_log_probs(decoder, row, batch.places, batch.targets, self.chunk, self.temperature)

    def _plain(self, decoder: Decoder, row: Tensor, batch: RolloutBatch, told: Tensor) -> Tensor:
        return (
            told if self.temperature == 1 else scored_log_probs(decoder, row, batch.places, batch.targets, self.chunk)
        )
