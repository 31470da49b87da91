"""TensorBoard: the numbers of a run's log as scalars under RUN/tensorboard, for those who watch runs there."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from intaglio.errors import UserError

__all__ = ["Board", "require_tensorboard"]


class Board:
    """Writes scalars.

    Args:
        folder: of the event files; several runs of one are read together.
        done: steps done before; what was written of later ones is void.
    """

    def __init__(self, folder: Path, done: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder, purge_step=done + 1 if done else None)

    def write(self, line: Mapping[str, Any]) -> None:
        """The numbers of one line of the log; those of a list are numbered, what is no number is left out."""
        for name, value in _numbers(line):
            self._writer.add_scalar(name, value, line["step"])
        self._writer.flush()

    def close(self) -> None:
        """Nothing comes after."""
        self._writer.close()


def require_tensorboard() -> None:
    """So that a run is refused before it starts.

    Raises:
        UserError: it is not installed.
    """
    if find_spec("tensorboard") is None:
        mend = "pip install 'intaglio[train]', or leave tensorboard out of the recipe"
        raise UserError("tensorboard is missing", where="tensorboard", mend=mend)


def _numbers(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in line.items():
        if isinstance(value, list | tuple):
            yield from _numbers({f"{name}/{number}": one for number, one in enumerate(value)})
        elif isinstance(value, int | float) and name != "step":
            yield name, float(value)
