"""`intaglio` with a rank that dies once: killed amid the forward of a step, as a machine would die.

Its environment says where: DIES_AT (the step), DIES_ON (the rank), and DIED (a file that is there once it has). A step
is a micro-batch.
"""

import os
import signal
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from intaglio.cli.main import main
from intaglio.parts.block import Block
from running import unmeasured

__all__: list[str] = []

STEPS = count(1)
FIRST: list[nn.Module] = []


def die(module: nn.Module, args: Any) -> None:
    """Kills this process, in the step and on the rank that it should, if it did not already."""
    if not isinstance(module, Block) or not torch.is_grad_enabled():
        return
    FIRST.append(module)
    if module is not FIRST[0]:
        return
    died = Path(os.environ["DIED"])
    here = (str(next(STEPS)), os.environ["RANK"]) == (os.environ["DIES_AT"], os.environ["DIES_ON"])
    if here and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    register_module_forward_pre_hook(die)
    with pytest.MonkeyPatch.context() as patch:
        unmeasured(patch)
        main()
