"""A scale for the loss of a model that computes in float16, whose small gradients would round to nothing.

The scaled loss gives gradients that many times as large; the masters' are divided by it in fp32. Where one overflowed
the step is skipped and the scale halved; after some steps without overflow it is doubled (Micikevicius et al. 2018,
section 3.2).
"""

__all__ = ["LossScaler"]


class LossScaler:
    """The scale, and how it follows what happens.

    Args:
        scale: to begin with.
        patience: steps in a row without overflow after which it doubles.
    """

    def __init__(self, scale: float = 2.0**16, patience: int = 2000) -> None:
        self.scale, self.patience = scale, patience
        self._fine = 0

    @property
    def exhausted(self) -> bool:
        """Whether halving cannot help: a gradient that overflows unscaled is the model's own."""
        return self.scale <= 1

    def update(self, overflowed: bool) -> None:
        """After each step."""
        self._fine = 0 if overflowed else self._fine + 1
        if overflowed:
            self.scale /= 2
        elif self._fine == self.patience:
            self.scale, self._fine = self.scale * 2, 0

    def state(self) -> dict[str, float]:
        """For `load_state`: JSON."""
        return {"scale": self.scale, "fine": self._fine}

    def load_state(self, state: dict[str, float]) -> None:
        """Goes on as the scaler that `state` came from would."""
        self.scale, self._fine = state["scale"], int(state["fine"])
