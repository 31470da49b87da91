"""What preference losses tell of their pairs, by the names TRL gives them.

Legend: D pairs.
"""

from torch import Tensor

from intaglio.training.objectives.metrics import Mean, Metric

__all__ = ["pair_metrics"]


def pair_metrics(rewards: Tensor, log_probs: Tensor) -> dict[str, Metric]:
    """Means over pairs.

    Args:
        rewards: (D, 2), implicit ones, of chosen and rejected.
        log_probs: (D, 2), of the answers as the loss takes them.
    """
    chosen, rejected = rewards.detach().unbind(dim=1)
    return {
        "rewards/chosen": Mean.of(chosen),
        "rewards/rejected": Mean.of(rejected),
        "rewards/accuracies": Mean.of(chosen > rejected),
        "rewards/margins": Mean.of(chosen - rejected),
        "logps/chosen": Mean.of(log_probs[:, 0]),
        "logps/rejected": Mean.of(log_probs[:, 1]),
    }
