"""At equal parameters and budget, on the same windows of text: held-out loss and speed of RNN, LSTM, GRU, Transformer.

The rows are windows of equal length, a lane each, so that every model sees the same characters in the same contexts,
begins each window from nothing, and is measured on the same targets. The budget is characters read. Each model gets
the same learning rates to choose from, on a seed that is not measured.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from intaglio.atlas.contestants import KINDS, RECURRENT, architecture, spec_of
from intaglio.atlas.findings import Finding, Verdict, claim, shown_interval
from intaglio.atlas.parts import Results, Stage
from intaglio.atlas.runs import best_rate, contest, run_recipe, write_rows
from intaglio.training.batching.data import samples_of
from intaglio.training.recipe import SourceSpec

__all__ = ["LanguageModels"]


@dataclass(frozen=True)
class LanguageModels:
    """See above.

    Attributes:
        text: a data set's name, or a path.
        characters: of it that are used.
        window: characters of a row.
        parameters, width: see `architecture`.
        steps: of a run, each over `batch` windows.
        rates: learning rates to choose from.
        seeds: that are measured.
    """

    name: ClassVar[str] = "language-models"
    text: str
    characters: int
    window: int
    parameters: int
    width: int
    steps: int
    batch: int
    rates: tuple[float, ...]
    seeds: int = 3

    def plain(self) -> dict[str, Any]:
        """See `Claims`."""
        return {**asdict(self), "rates": list(self.rates)}

    def stages(self) -> list[Stage]:
        """See `Claims`."""
        return contest(KINDS, self.rates, self.seeds, self._try, self._run)

    def finding(self, results: Results) -> Finding:
        """See `Claims`."""
        losses = {kind: self._over_seeds(results, kind, "loss") for kind in KINDS}
        speeds = {kind: self._over_seeds(results, kind, "tokens_per_second") for kind in KINDS}
        curves = {kind: self._over_seeds(results, kind, "curve").mean(axis=0) for kind in KINDS}
        return Finding(
            title=f"{self.steps} steps of {self.batch} windows of {self.window} characters, {self.text}",
            columns=("model", "parameters", "learning rate", "held-out loss, nats a character", "characters/s"),
            rows=[
                (
                    kind,
                    f"{spec_of(self._architecture(kind)).num_parameters():,}",
                    f"{best_rate(results, kind, self.rates):g}",
                    shown_interval(losses[kind], 3),
                    shown_interval(speeds[kind], 0),
                )
                for kind in KINDS
            ],
            verdicts=_verdicts(losses, speeds),
            panels={"training loss, nats a character": {kind: _points(curves[kind]) for kind in KINDS}},
            across="characters read",
        )

    def _over_seeds(self, results: Results, kind: str, what: str) -> np.ndarray:
        return np.array([results[f"{kind}, seed {seed}"][what] for seed in range(1, self.seeds + 1)])

    def _architecture(self, kind: str) -> dict[str, Any]:
        return architecture(kind, self.parameters, self.width, self.window + 1)

    def _try(self, kind: str, rate: float, folder: Path, results: Results) -> dict[str, Any]:
        return run_recipe(self._recipe(kind, folder), rate, 0, folder / f"{kind}-rate-{rate:g}")

    def _run(self, kind: str, seed: int, folder: Path, results: Results) -> dict[str, Any]:
        rate = best_rate(results, kind, self.rates)
        return run_recipe(self._recipe(kind, folder), rate, seed, folder / f"{kind}-seed-{seed}")

    def _recipe(self, kind: str, folder: Path) -> dict[str, Any]:
        rows = write_rows(folder / "windows.jsonl", self._windows())
        recurrent = {"objective": {"kind": "truncated_bptt"}}
        return {
            **(recurrent if kind in RECURRENT else {"packing": "none"}),
            "architecture": self._architecture(kind),
            "tokenizer": {"kind": "characters", "vocab_size": 128},
            "data": str(rows),
            "validation": 0.05,
            "max_length": self.window + 1,  # and the EOS
            "micro_batch": self.batch,
            "steps": self.steps,
        }

    def _windows(self) -> Iterator[dict[str, Any]]:
        """The beginning of the text in pieces of equal length."""
        held, left = "", self.characters
        for sample in samples_of(SourceSpec(path=self.text)):
            held += (sample.text or "")[:left]
            left = self.characters - len(held)
            if not left:
                break
        for start in range(0, len(held) - self.window + 1, self.window):
            yield {"text": held[start : start + self.window]}


def _verdicts(losses: dict[str, np.ndarray], speeds: dict[str, np.ndarray]) -> list[Verdict]:
    below = [("LSTM", "RNN"), ("GRU", "RNN"), ("Transformer", "RNN"), ("Transformer", "LSTM"), ("Transformer", "GRU")]
    faster = [(kind, "Transformer") for kind in RECURRENT]
    return [
        *(claim(f"{a} has a lower loss than {b}", losses[b] - losses[a], "nats a character") for a, b in below),
        *(claim(f"{b} is faster than {a}", speeds[b] - speeds[a], "characters/s") for a, b in faster),
    ]


def _points(curve: np.ndarray) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in curve]
