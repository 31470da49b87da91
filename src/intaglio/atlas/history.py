"""What the history claims about what came before attention, measured: four groups of claims, at two sizes.

FOLDER/
    CLAIMS.json     the finished parts, so that a later call makes only the rest
    CLAIMS.png      the curves
    CLAIMS/         the data and the runs of the parts
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from intaglio.atlas.copying import Copying
from intaglio.atlas.findings import Finding
from intaglio.atlas.gradients import Gradients
from intaglio.atlas.language_models import LanguageModels
from intaglio.atlas.parts import Claims, measure
from intaglio.atlas.throughput import Throughput
from intaglio.plots import draw_curves

__all__ = ["FULL", "QUICK", "climb"]

FULL: Final[Sequence[Claims]] = (
    LanguageModels(
        text="stdlib",
        characters=2_000_000,
        window=128,
        parameters=200_000,
        width=80,
        steps=800,
        batch=16,
        rates=(1e-3, 3e-3, 1e-2),
    ),
    Gradients(lengths=(2, 4, 8, 16, 32, 64, 128), hidden_size=64, sequences=32),
    Copying(
        data="copying",
        lengths=(5, 10, 15, 20, 25, 30),
        questions=50,
        hidden_size=128,
        steps=2000,
        batch=64,
        rates=(1e-3, 3e-3),
    ),
    Throughput(lengths=(16, 32, 64, 128, 256, 512), sequences=1, parameters=1_500_000, width=256, repeats=20),
)
"""Some 40 minutes on two CPU cores."""

QUICK: Final[Sequence[Claims]] = (
    LanguageModels(
        text="stdlib",
        characters=60_000,
        window=32,
        parameters=30_000,
        width=32,
        steps=150,
        batch=16,
        rates=(3e-3,),
    ),
    Gradients(lengths=(2, 8, 32, 64), hidden_size=32, sequences=8),
    Copying(data="copying", lengths=(3, 6, 9), questions=20, hidden_size=32, steps=200, batch=32, rates=(3e-3,)),
    Throughput(lengths=(16, 64, 256), sequences=1, parameters=30_000, width=32, repeats=3),
)
"""The same at toy size: it shows that everything runs, and hardly more."""


def climb(size: Sequence[Claims], folder: Path, say: Callable[[str], None], jobs: int = 1) -> dict[str, Finding]:
    """Measures every group of claims in `folder`, or what is still missing of it, and draws its curves.

    Args:
        size: the groups.
        folder: where all of it is kept.
        say: see `measure`.
        jobs: see `measure`.

    Raises:
        UserError: the folder holds measurements of another size; matplotlib is missing.
    """
    findings = {}
    for claims in size:
        findings[claims.name] = found = measure(claims, folder, say, jobs)
        draw_curves(folder / f"{claims.name}.png", found.panels, found.across)
    return findings
