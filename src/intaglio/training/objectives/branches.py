"""What a language model says of the answers in a batch of documents that fork.

Legend: N tokens of the batch, n scored tokens, b branches, E features, V vocabulary.
"""

import torch
from torch import Tensor, nn

from intaglio.models.decoder import Decoder
from intaglio.parallel.vocabulary import output_matrix
from intaglio.parts.forked import Forked
from intaglio.training.batching.forks import ForkedBatch
from intaglio.training.objectives.metrics import Mean, Metric
from intaglio.training.objectives.token_logprobs import chunked_log_probs
from intaglio.training.rl.rollouts import RolloutBatch

__all__ = ["branch_log_probs", "fork_states", "scored_log_probs", "token_metrics"]


def fork_states(model: nn.Module, batch: ForkedBatch | RolloutBatch) -> Tensor:
    """What comes out of the last layer, (N, E): every prompt once."""
    assert isinstance(model, Decoder)
    return model.hidden_states(batch.ids, batch.positions, Forked(batch.forks))[0]


def scored_log_probs(
    model: Decoder, hidden: Tensor, places: Tensor, targets: Tensor, chunk: int, temperature: float = 1.0
) -> Tensor:
    """log p (n,) of `targets` (n,), each predicted at its place (n,) in the hidden states (N, E); in fp32."""
    weight, vocabulary = output_matrix(model.lm_head)
    return chunked_log_probs(
        hidden[places],
        weight,
        targets,
        chunk=chunk,
        softcap=model.spec.logit_softcap,
        temperature=temperature,
        vocabulary=vocabulary,
    )


def branch_log_probs(model: Decoder, batch: ForkedBatch, chunk: int) -> Tensor:
    """log p of each answer given its prompt, (b,): the sum over its scored tokens."""
    hidden = fork_states(model, batch)
    return batch.by_branch(scored_log_probs(model, hidden, batch.places, batch.targets, chunk))


@torch.no_grad()
def token_metrics(model: Decoder, hidden: Tensor, batch: ForkedBatch, chosen: Tensor, chunk: int) -> dict[str, Metric]:
    """What needs all logits, (chunk, V) at a time, and so is told only where a model is measured, not where it learns.

    Args:
        model: the policy.
        hidden: (N, E).
        batch: of which `hidden` is.
        chosen: (b,) bool, the branches that are wanted; the accuracy is of these.
        chunk: tokens at a time.
    """
    parts = zip(batch.places.split(chunk), batch.targets.split(chunk), strict=True)
    made = [_of_logits(model.logits(hidden[places]), targets) for places, targets in parts]
    entropies, means, hits = (torch.cat(columns) for columns in zip(*made, strict=True))
    wanted = chosen[batch.owners]  # (n,)
    return {
        "entropy": Mean.of(entropies),
        "logits/chosen": Mean.of(means[wanted]),
        "logits/rejected": Mean.of(means[~wanted]),
        "mean_token_accuracy": Mean.of(hits[wanted]),
    }


def _of_logits(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Entropy, mean logit and whether the target is the likeliest, of each row."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_probs = logits.log_softmax(dim=-1)
    entropies = -(log_probs.exp() * log_probs).sum(dim=-1)
    return entropies, logits.mean(dim=-1), logits.argmax(dim=-1) == targets
