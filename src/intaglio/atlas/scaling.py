"""The scaling effect: larger models and more text, steadily better; and the loss of a size that was not trained yet.

Models of a few sizes are each trained with a few budgets of tokens. A power law is fitted to their held-out losses,

    log L = a - alpha log N - beta log D          N parameters between embedding and output, D tokens read

(Kaplan et al. 2020, arXiv 2001.08361, without the irreducible loss, which a range as short as ours does not show), by
least squares, with Student's intervals. From it the loss of a larger size is predicted, written down, and then that
size is trained.
"""

import math
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from intaglio.atlas.findings import STUDENT, Finding, Verdict
from intaglio.atlas.parts import Results, Stage
from intaglio.atlas.rungs import Shape, architecture, read_rungs, spec_of
from intaglio.atlas.runs import best_rate
from intaglio.atlas.texts import prepare_text, train_on_text
from intaglio.evaluation.intervals import Interval
from intaglio.specs import DecoderSpec

__all__ = ["FULL_SCALING", "QUICK_SCALING", "PowerLaw", "Scaling", "fit"]

_RUNG: Final = "no-biases"


class PowerLaw(NamedTuple):
    """log L = a - alpha log N - beta log D, as fitted to n losses.

    Attributes:
        coefficients: (3,) a, alpha, beta.
        covariance: (3, 3) of them.
        variance: of what is left, per loss.
        freedom: n - 3.
    """

    coefficients: np.ndarray
    covariance: np.ndarray
    variance: float
    freedom: int

    def exponent(self, place: int) -> Interval:
        """95 % interval of alpha (1) or beta (2)."""
        mean, reach = self.coefficients[place], self._reach(self.covariance[place, place])
        return Interval(float(mean), float(mean - reach), float(mean + reach))

    def predict(self, parameters: float, tokens: float) -> Interval:
        """95 % interval for the loss of one further run (not for the mean of many)."""
        row = _row(parameters, tokens)
        mean = row @ self.coefficients
        reach = self._reach(row @ self.covariance @ row + self.variance)
        return Interval(*(float(math.exp(value)) for value in (mean, mean - reach, mean + reach)))

    def _reach(self, variance: float) -> float:
        return STUDENT[self.freedom] * math.sqrt(variance)


def fit(parameters: np.ndarray, tokens: np.ndarray, losses: np.ndarray) -> PowerLaw:
    """The power law of the least squares in log L; all (n,), n at least 4."""
    rows = np.stack([_row(n, d) for n, d in zip(parameters, tokens, strict=True)])
    coefficients, *_ = np.linalg.lstsq(rows, np.log(losses), rcond=None)
    freedom = len(losses) - rows.shape[1]
    assert freedom > 0, "as many losses as coefficients"
    left = np.log(losses) - rows @ coefficients
    variance = float(left @ left) / freedom
    return PowerLaw(coefficients, variance * np.linalg.inv(rows.T @ rows), variance, freedom)


def _row(parameters: float, tokens: float) -> np.ndarray:
    return np.array([1.0, -math.log(parameters), -math.log(tokens)])


@dataclass(frozen=True)
class Scaling:
    """See above.

    Attributes:
        text, characters, vocab_size, context, batch: see `Ladder`.
        sizes: of the models that the law is fitted to, from the smallest.
        larger: whose loss is predicted.
        steps: budgets, from the shortest; the larger size is trained with the longest.
        rates: learning rates to choose from for each size, with the shortest budget and a seed that is not measured;
            the larger size takes what the largest took.
    """

    name: ClassVar[str] = "scaling"
    text: str
    characters: int
    vocab_size: int
    context: int
    batch: int
    sizes: tuple[Shape, ...]
    larger: Shape
    steps: tuple[int, ...]
    rates: tuple[float, ...]

    def plain(self) -> dict[str, Any]:
        """See `Claims`."""
        sizes = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return {**sizes, "models": {_named(size): self._architecture(size) for size in (*self.sizes, self.larger)}}

    def stages(self) -> list[Stage]:
        """See `Claims`."""
        tried = self.rates if len(self.rates) > 1 else ()
        tries = {f"{_named(s)}, rate {rate:g}": partial(self._try, s, rate) for s in self.sizes for rate in tried}
        runs = {f"{_named(s)}, {n} steps": partial(self._run, s, n) for n in self.steps for s in self.sizes}
        return [{"text": self._prepare}, tries, runs, {"prediction": self._predict}, {"larger": self._larger}]

    def finding(self, results: Results) -> Finding:
        """See `Claims`."""
        law, predicted = self._law(results), Interval(*results["prediction"])
        loss = results["larger"]["loss"]
        inside = predicted.low <= loss <= predicted.high
        longest = self.steps[-1]
        last = (
            f"{_named(self.larger)}, predicted before it was run",
            f"{self._parameters(self.larger):,}",
            f"{self._tokens(longest):,}",
            f"{self._rate(self.sizes[-1], results):g}",
            f"{loss:.3f}; predicted {predicted.mean:.3f} [{predicted.low:.3f}, {predicted.high:.3f}]: "
            f"{'inside' if inside else 'outside'}",
        )
        return Finding(
            title=f"log L = {law.coefficients[0]:.3f} - alpha log N - beta log D, fitted to "
            f"{len(self.sizes) * len(self.steps)} runs on {self.text}",
            columns=(
                "size",
                "parameters between the embeddings",
                "tokens",
                "learning rate",
                "held-out loss, nats a token",
            ),
            rows=[*(self._cells(size, n, results) for size in self.sizes for n in self.steps), last],
            verdicts=[
                Verdict("more parameters, less loss: alpha", law.exponent(1), "a unit of log"),
                Verdict("more tokens, less loss: beta", law.exponent(2), "a unit of log"),
            ],
            panels={"held-out loss, nats a token": self._curves(results, predicted)},
            across="log10 of the parameters between the embeddings",
        )

    def _cells(self, size: Shape, steps: int, results: Results) -> tuple[str, ...]:
        return (
            _named(size),
            f"{self._parameters(size):,}",
            f"{self._tokens(steps):,}",
            f"{self._rate(size, results):g}",
            f"{results[f'{_named(size)}, {steps} steps']['loss']:.3f}",
        )

    def _curves(self, results: Results, predicted: Interval) -> dict[str, list[tuple[float, float]]]:
        law, larger = self._law(results), math.log10(self._parameters(self.larger))
        measured = {
            f"{self._tokens(n):,} tokens": [
                (math.log10(self._parameters(s)), results[f"{_named(s)}, {n} steps"]["loss"]) for s in self.sizes
            ]
            for n in self.steps
        }
        tokens = self._tokens(self.steps[-1])
        fitted = [
            (math.log10(n), law.predict(n, tokens).mean) for n in map(self._parameters, (*self.sizes, self.larger))
        ]
        span = [(larger, predicted.low), (larger, predicted.high)]
        return {**measured, "fitted": fitted, "predicted": span, "measured": [(larger, results["larger"]["loss"])] * 2}

    def _law(self, results: Results) -> PowerLaw:
        grid = [(size, n) for size in self.sizes for n in self.steps]
        return fit(
            np.array([self._parameters(size) for size, _ in grid], dtype=float),
            np.array([self._tokens(n) for _, n in grid], dtype=float),
            np.array([results[f"{_named(size)}, {n} steps"]["loss"] for size, n in grid]),
        )

    def _parameters(self, size: Shape) -> int:
        """Between the embeddings, which a small model mostly consists of."""
        spec = self._spec(size)
        return spec.num_parameters() - spec.vocab_size * spec.hidden_size

    def _tokens(self, steps: int) -> int:
        return steps * self.batch * self.context

    def _rate(self, size: Shape, results: Results) -> float:
        return best_rate(results, _named(size), self.rates)

    def _architecture(self, size: Shape) -> dict[str, Any]:
        return architecture(_RUNG, read_rungs(), {"plain": size}, self.context)

    def _spec(self, size: Shape) -> DecoderSpec:
        return spec_of(self._architecture(size), self.vocab_size)

    def _prepare(self, folder: Path, results: Results) -> dict[str, Any]:
        return prepare_text(self.text, self.characters, self.vocab_size, folder)

    def _try(self, size: Shape, rate: float, folder: Path, results: Results) -> dict[str, Any]:
        return self._trained(size, self.steps[0], rate, 0, folder / f"{_named(size)}-rate-{rate:g}")

    def _run(self, size: Shape, steps: int, folder: Path, results: Results) -> dict[str, Any]:
        return self._trained(size, steps, self._rate(size, results), 1, folder / f"{_named(size)}-{steps}")

    def _predict(self, folder: Path, results: Results) -> list[float]:
        return list(self._law(results).predict(self._parameters(self.larger), self._tokens(self.steps[-1])))

    def _larger(self, folder: Path, results: Results) -> dict[str, Any]:
        steps, rate = self.steps[-1], self._rate(self.sizes[-1], results)
        return self._trained(self.larger, steps, rate, 1, folder / f"{_named(self.larger)}-{steps}")

    def _trained(self, size: Shape, steps: int, rate: float, seed: int, run: Path) -> dict[str, Any]:
        recipe = {
            "architecture": self._architecture(size),
            "max_length": self.context,
            "micro_batch": self.batch,
            "steps": steps,
        }
        return train_on_text(recipe, rate, seed, run)


def _named(size: Shape) -> str:
    return f"{size.layers}x{size.width}"


FULL_SCALING: Final = Scaling(
    text="stdlib",
    characters=6_000_000,
    vocab_size=2048,
    context=256,
    batch=8,
    sizes=(Shape(2, 48, 3), Shape(3, 64, 4), Shape(4, 96, 6), Shape(6, 128, 8)),
    larger=Shape(8, 176, 11),
    steps=(125, 250, 500),
    rates=(1e-3, 3e-3, 1e-2),
)
"""Some fifteen minutes on two cores."""

QUICK_SCALING: Final = Scaling(
    text="stdlib",
    characters=400_000,
    vocab_size=512,
    context=64,
    batch=16,
    sizes=(Shape(2, 16, 1), Shape(2, 24, 1), Shape(2, 32, 2), Shape(3, 48, 3)),
    larger=Shape(4, 64, 4),
    steps=(40, 80, 160),
    rates=(3e-3,),
)
"""A smoke test of a few minutes."""
