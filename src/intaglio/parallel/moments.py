"""What optimizers remember, by the names of the weights, so that no order of theirs is in a checkpoint."""

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from intaglio.errors import UserError

__all__ = ["MOMENTS", "OBJECTIVE", "STREAM", "moments_of", "take_moments"]

MOMENTS: Final = "optimizer."
"""What the name of a moment begins with; the weight's and its own follow."""

OBJECTIVE: Final = "objective."
"""What the name of a tensor begins with that an objective remembers."""

STREAM: Final = "stream."
"""And of one that a stream has at hand."""

Optimizers = Sequence[torch.optim.Optimizer]


def moments_of(weights: Mapping[str, Tensor], optimizers: Optimizers) -> dict[str, Tensor]:
    """What optimizers remember of weights, as `optimizer.NAME.exp_avg` and the like."""
    names = {id(weight): name for name, weight in weights.items()}
    return {
        f"{MOMENTS}{names[id(weight)]}.{key}": torch.as_tensor(value)
        for optimizer in optimizers
        for weight, state in optimizer.state.items()
        for key, value in state.items()
    }


def take_moments(weights: Mapping[str, Tensor], optimizers: Optimizers, moments: Mapping[str, Tensor]) -> None:
    """Gives optimizers what `moments_of` has told of them.

    Raises:
        UserError: moments of a weight that no optimizer steps.
    """
    by_name: dict[str, dict[str, Tensor]] = {}
    for full, moment in moments.items():
        name, _, key = full.removeprefix(MOMENTS).rpartition(".")
        by_name.setdefault(name, {})[key] = moment
    names = {id(weight): name for name, weight in weights.items()}
    for optimizer in optimizers:
        stepped = [p for group in optimizer.param_groups for p in group["params"]]
        found = {index: by_name.pop(names[id(p)]) for index, p in enumerate(stepped) if names[id(p)] in by_name}
        optimizer.load_state_dict({"state": found, "param_groups": optimizer.state_dict()["param_groups"]})
    if by_name:
        raise UserError(f"moments of {next(iter(by_name))!r}, which no optimizer steps")
