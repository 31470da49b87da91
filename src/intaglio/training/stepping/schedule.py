"""Learning rate by step, as a share of the peak: a warm-up, then one of five shapes."""

import math
from typing import Literal

from pydantic import Field

from intaglio.specs import Spec

__all__ = ["ScheduleSpec"]


class ScheduleSpec(Spec):
    """How the learning rate runs.

    Attributes:
        kind: constant; linear or cosine down to `final`; wsd: constant, then linear over the last `decay` of the steps
            (Hu et al. 2024); inverse_sqrt: 1 / sqrt(step / warmup) (Vaswani et al. 2017).
        warmup: steps of linear warm-up from 0; below 1, a share of all steps.
        final: share of the peak at the end.
        decay: wsd's last share of the steps.
    """

    kind: Literal["constant", "linear", "cosine", "wsd", "inverse_sqrt"] = "cosine"
    warmup: float = Field(0.03, ge=0)
    final: float = Field(0.1, ge=0, le=1)
    decay: float = Field(0.2, gt=0, le=1)

    def factor(self, step: int, steps: int) -> float:
        """The share of the peak that step number `step` (from 0) of `steps` runs at."""
        warmup = self.warmup_steps(steps)
        if step < warmup:
            return (step + 1) / warmup
        done = (step - warmup) / max(steps - warmup - 1, 1)  # 0 at the peak, 1 at the last step
        return self._after(min(done, 1.0), step, max(warmup, 1))

    def warmup_steps(self, steps: int) -> int:
        """The warm-up in steps."""
        return int(self.warmup * steps) if self.warmup < 1 else int(self.warmup)

    def _after(self, done: float, step: int, warmup: int) -> float:
        match self.kind:
            case "constant":
                return 1.0
            case "linear":
                return 1 - (1 - self.final) * done
            case "cosine":
                return self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2
            case "wsd":
                falling = max(done - (1 - self.decay), 0) / self.decay
                return 1 - (1 - self.final) * falling
            case "inverse_sqrt":
                return math.sqrt(warmup / (step + 1))
