"""An event loop whose clock jumps to the next thing to do, so that waiting takes no time and every time is exact."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run_virtual"]

Result = TypeVar("Result")


class _Jumping(selectors.DefaultSelector):
    """Never waits: asks the loop to jump instead."""

    loop: "_VirtualLoop"

    def select(self, timeout: float | None = None) -> Any:
        """What is ready, or else nothing at a later time."""
        ready = super().select(0)
        if not ready and timeout:
            self.loop.jump()
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    """Its time is 0 at the start."""

    _scheduled: list[Any]  # the base class's heap of timers

    def __init__(self) -> None:
        selector = _Jumping()
        selector.loop = self
        self._virtual = 0.0
        super().__init__(selector)

    def time(self) -> float:
        """The virtual time."""
        return self._virtual

    def jump(self) -> None:
        """To the next timer."""
        assert self._scheduled, "waits for ever"
        self._virtual = max(self._virtual, self._scheduled[0].when())


def run_virtual(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Runs to the end in virtual time."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(coroutine)
