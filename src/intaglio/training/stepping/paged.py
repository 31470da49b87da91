"""AdamW whose moments do not take the room that training needs: paged, as QLoRA has it (Dettmers et al. 2023, 3).

On a CPU they lie in mapped files, which the system writes out when memory is short and reads back when a step comes.
Beside another device they lie in the host's pinned memory, and each tensor's come over for its own update. The
arithmetic is AdamW's, to the bit.
"""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from intaglio.errors import UserError
from intaglio.files import home

__all__ = ["PagedAdamW"]

_MOMENTS = ("exp_avg", "exp_avg_sq")
_LEAST = 100_000  # elements; smaller ones weigh less than the pages they would lie on


class PagedAdamW(torch.optim.AdamW):
    """See `torch.optim.AdamW`; saved and loaded as that one is.

    Args:
        params: parameters, or groups of them.
        folder: for the mapped files, which have no name and go when the process does; None takes one in the cache
            folder. It must lie on a disk: a folder in memory saves none.
        adamw: more of AdamW's arguments.
    """

    def __init__(self, params: Iterable[Any], *, folder: Path | None = None, **adamw: Any) -> None:
        super().__init__(params, **adamw, fused=True)
        self._folder = folder or home() / "paged"

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient, one after the other."""
        assert closure is None, "no closure"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the state of an AdamW, paged or not."""
        super().load_state_dict(state_dict)
        for parameter, state in self.state.items():
            for name in _MOMENTS:
                state[name] = self._paged(parameter).copy_(state[name])

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state.update({name: self._paged(parameter) for name in _MOMENTS})
        moments = [state[name].to(parameter.device, non_blocking=True) for name in _MOMENTS]
        beta1, beta2 = group["betas"]
        adamw(
            [parameter],
            [parameter.grad],
            [moments[0]],
            [moments[1]],
            [],
            [state["step"]],
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        for name, moment in zip(_MOMENTS, moments, strict=True):
            if moment is not state[name]:
                state[name].copy_(moment)

    def _paged(self, parameter: Tensor) -> Tensor:
        """Zeros of the parameter's shape where they are in nobody's way."""
        if parameter.device.type != "cpu":
            return torch.zeros(parameter.shape, dtype=parameter.dtype, pin_memory=True)
        if parameter.numel() < _LEAST:
            return torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        try:
            return self._mapped(parameter.numel(), parameter.dtype).view(parameter.shape)
        except OSError as error:
            what = f"no room for the optimizer's state ({error.strerror or error})"
            raise UserError(what, where=str(self._folder)) from error

    def _mapped(self, count: int, dtype: torch.dtype) -> Tensor:
        """Zeros in a file. Its room is taken at once: a disk that is full later would end the process."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix="moments-") as file:
            size = count * dtype.itemsize
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            return torch.from_file(file.name, shared=True, size=count, dtype=dtype)
