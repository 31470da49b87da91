"""fp32 master weights under a model that computes in less.

The model's parameters are in the compute dtype. Each that trains has a master in fp32 that the optimizer steps;
gradients are added to the master's, in fp32, as soon as the backward has made them, and freed. So accumulation over
micro-batches loses nothing to rounding, and a gradient in the compute dtype never outlives its layer. What computes in
fp32 itself, a whole model or the adapters on one, is its own master. What is frozen has neither master nor gradient.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["MasterWeights"]


class MasterWeights:
    """The masters of a model's trainable parameters, by name.

    Args:
        model: what trains is in fp32 when it comes; all of it is put into `dtype` in place.
        dtype: what the parameters that train compute in; with fp32 the frozen ones stay as they are.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.model = model
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if torch.promote_types(dtype, torch.float32) == dtype:
            self.masters: dict[str, nn.Parameter] = trainable
            self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
            return
        self.masters = {name: nn.Parameter(p.detach().float().clone()) for name, p in trainable.items()}
        _put_into(model, dtype)
        computing = dict(model.named_parameters())
        self._pairs = [(computing[name], master) for name, master in self.masters.items()]
        for parameter, master in self._pairs:
            master.grad = torch.zeros_like(master)
            parameter.register_post_accumulate_grad_hook(_hand_over(master))

    def parameters(self) -> list[nn.Parameter]:
        """The masters."""
        return list(self.masters.values())

    @torch.no_grad()
    def collect(self) -> None:
        """Takes over gradients that parameters were given by hand, so that no hook has seen them."""
        for parameter, master in self._pairs:
            if parameter.grad is not None:
                assert master.grad is not None
                master.grad += parameter.grad
                parameter.grad = None

    def zero_grad(self) -> None:
        """Before a step."""
        for master in self.masters.values():
            if master.grad is not None:
                master.grad.zero_()

    @torch.no_grad()
    def publish(self) -> None:
        """After a step: the model computes with the new weights."""
        for parameter, master in self._pairs:
            parameter.copy_(master)

    @torch.no_grad()
    def load(self, weights: dict[str, Tensor]) -> None:
        """Takes weights from a checkpoint, by name."""
        assert weights.keys() == self.masters.keys(), "the checkpoint is of another model"
        for name, master in self.masters.items():
            master.copy_(weights[name])
        self.publish()


def _put_into(model: nn.Module, dtype: torch.dtype) -> None:
    """All parameters into a dtype. What ranks share out holds its piece elsewhere than in `data`: it is made anew."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if not hasattr(parameter, "to_local"):
                parameter.data = parameter.data.to(dtype)
                continue
            if parameter not in made:  # a tied matrix has two places, and is one
                made[parameter] = nn.Parameter(parameter.detach().to(dtype), parameter.requires_grad)
            module._parameters[name] = made[parameter]


def _hand_over(master: nn.Parameter) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        assert parameter.grad is not None
        assert master.grad is not None
        master.grad += parameter.grad
        parameter.grad = None

    return hook
