"""From GPT-1 to LLaMA, one change at a time: what each change does to the held-out loss, and what it costs.

Every rung trains on the same text in the same order (a seed decides the order and the weights), for as many tokens.
Its learning rate is chosen from the same few, by shorter runs of a seed that is not measured. Then every rung is
trained with the same seeds, and rungs are compared seed by seed. A run whose loss ceases to be a number counts as one
that knows nothing: ln(vocabulary) nats a token.

Memory is that of a training step by the planner's arithmetic, speed is timed when all runs are done, the models taking
turns.

Legend: S seeds.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import torch

from intaglio.atlas.findings import Finding, Verdict, claim, shown_interval
from intaglio.atlas.parts import Results, Stage
from intaglio.atlas.rungs import Rung, RungClaim, Shape, architecture, chosen, claims, read_rungs, spec_of, warmup_of
from intaglio.atlas.runs import SCHEDULE, best_rate, contest
from intaglio.atlas.texts import prepare_text, train_on_text
from intaglio.atlas.throughput import pass_seconds
from intaglio.models.build import build_model
from intaglio.models.init import init_weights
from intaglio.planning.job_plan import plan_job
from intaglio.planning.jobs import JobSpec
from intaglio.specs import DecoderSpec
from intaglio.specs.parallel import ParallelSpec
from intaglio.training.loop import NotFinite

__all__ = ["FULL", "QUICK", "Ladder"]

_WIDE: Final = 6
"""Rungs whose curves share a panel."""


@dataclass(frozen=True)
class Ladder:
    """See above.

    Attributes:
        text: a data set's name, or a path.
        characters: of it that are used.
        vocab_size: of the BPE that is learned from it.
        context: tokens of a sequence.
        plain, deep: shapes of the models.
        steps: of a run, each over `batch` sequences.
        share: of the steps, for each learning rate that is tried.
        rates: learning rates to choose from.
        seeds: that are measured.
        repeats: timed passes of which the quickest counts.
        swaps, only: see `read_rungs` and `chosen`.
    """

    name: ClassVar[str] = "ladder"
    text: str
    characters: int
    vocab_size: int
    context: int
    plain_shape: Shape
    deep_shape: Shape
    steps: int
    batch: int
    share: float
    rates: tuple[float, ...]
    seeds: int = 3
    repeats: int = 5
    swaps: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    @cached_property
    def rungs(self) -> dict[str, Rung]:
        """All of them."""
        return read_rungs(self.swaps)

    @cached_property
    def climbed(self) -> list[str]:
        """The names of those that are measured."""
        return chosen(self.rungs, self.only)

    def plain(self) -> dict[str, Any]:
        """See `Claims`."""
        sizes = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        models = {name: self._architecture(name) for name in self.climbed}
        return {**sizes, "models": models, "warmup": {name: self._warmup(name) for name in self.climbed}}

    def stages(self) -> list[Stage]:
        """See `Claims`."""
        runs = contest(self.climbed, self.rates, self.seeds, self._try, self._run)
        return [{"text": self._prepare}, *runs, {"speed": self._speeds}]

    def finding(self, results: Results) -> Finding:
        """See `Claims`."""
        losses = {name: self._losses(name, results) for name in self.climbed}
        return Finding(
            title=f"{self.steps} steps of {self.batch} sequences of {self.context} tokens, {self.text}; "
            f"{self.seeds} seeds",
            columns=(
                "rung",
                "parameters",
                "active",
                "learning rate",
                "held-out loss, nats a token",
                "bits a byte",
                "less loss than the rung below",
                "tokens/s",
                "step, MiB",
                "KV cache, KiB",
            ),
            rows=[self._row(name, losses, results) for name in self.climbed],
            verdicts=[self._verdict(one, losses) for one in claims() if {one.ahead, one.of} <= set(self.climbed)],
            panels={
                title: {self.rungs[name].title: self._curve(name, results) for name in names}
                for title, names in self._panels()
            },
            across="tokens read",
        )

    def _row(self, name: str, losses: dict[str, np.ndarray], results: Results) -> tuple[str, ...]:
        spec, below = self._spec(name), self.rungs[name].below
        bits = self._bits_per_nat(results)
        return (
            self.rungs[name].title,
            f"{spec.num_parameters():,}",
            f"{spec.num_active_parameters():,}",
            f"{best_rate(results, name, self.rates):g}",
            shown_interval(losses[name], 3),
            f"{bits * losses[name].mean():.3f}",
            shown_interval(losses[below] - losses[name], 3) if below in losses else "",
            f"{results['speed'][name]:,.0f}",
            f"{self._step_bytes(spec) / 2**20:,.0f}",
            f"{spec.kv_cache_bytes(self.context, 'bfloat16') / 2**10:,.0f}",
        )

    def _verdict(self, one: RungClaim, losses: dict[str, np.ndarray]) -> Verdict:
        title, other = one.title or self.rungs[one.ahead].title, self.rungs[one.of].title
        if one.margin:
            verb = "lose" if one.title else "loses"
            sentence = f"{title}: {verb} less than {one.margin:.0%} of the loss of {other}"
        else:
            sentence = f"{title}: a lower loss than {other}"
        return claim(sentence, (1 + one.margin) * losses[one.of] - losses[one.ahead], "nats a token")

    def _losses(self, name: str, results: Results) -> np.ndarray:
        """(S,)"""
        return np.array([results[f"{name}, seed {seed}"]["loss"] for seed in range(1, self.seeds + 1)])

    def _bits_per_nat(self, results: Results) -> float:
        """Bits a byte for each nat a token: of the held-out text, so the same in all runs that came to an end."""
        told = (results[f"{name}, seed 1"] for name in self.climbed)
        return next((one["bits_per_byte"] / one["loss"] for one in told if one["bits_per_byte"]), math.nan)

    def _curve(self, name: str, results: Results) -> list[tuple[float, float]]:
        curves = [results[f"{name}, seed {seed}"]["curve"] for seed in range(1, self.seeds + 1)]
        length = min(map(len, curves))
        mean = np.array([curve[:length] for curve in curves]).mean(axis=0) if length else np.empty((0, 2))
        return [(float(x), float(y)) for x, y in mean]

    def _panels(self) -> Iterator[tuple[str, Sequence[str]]]:
        for start in range(0, len(self.climbed), _WIDE):
            yield f"training loss {1 + start // _WIDE}", self.climbed[start : start + _WIDE]

    def _architecture(self, name: str) -> dict[str, Any]:
        shapes = {"plain": self.plain_shape, "deep": self.deep_shape}
        return architecture(name, self.rungs, shapes, self.context)

    def _spec(self, name: str) -> DecoderSpec:
        return spec_of(self._architecture(name), self.vocab_size)

    def _warmup(self, name: str) -> float:
        return warmup_of(name, self.rungs, SCHEDULE["warmup"])

    def _step_bytes(self, spec: DecoderSpec) -> int:
        """Of a step's peak, by arithmetic."""
        job = JobSpec(job="pretrain", dtype="float32", sequence=self.context, micro_batch=self.batch)
        return plan_job(spec, job, ParallelSpec(), cpu=True).peak_bytes

    def _prepare(self, folder: Path, results: Results) -> dict[str, Any]:
        return prepare_text(self.text, self.characters, self.vocab_size, folder)

    def _try(self, name: str, rate: float, folder: Path, results: Results) -> dict[str, Any]:
        steps = max(1, round(self.share * self.steps))
        return self._trained(name, rate, 0, steps, folder / f"{name}-rate-{rate:g}")

    def _run(self, name: str, seed: int, folder: Path, results: Results) -> dict[str, Any]:
        rate = best_rate(results, name, self.rates)
        return self._trained(name, rate, seed, self.steps, folder / f"{name}-seed-{seed}")

    def _trained(self, name: str, rate: float, seed: int, steps: int, run: Path) -> dict[str, Any]:
        recipe = {
            "architecture": self._architecture(name),
            "max_length": self.context,
            "micro_batch": self.batch,
            "steps": steps,
            "schedule": {**SCHEDULE, "warmup": self._warmup(name)},
        }
        try:
            return train_on_text(recipe, rate, seed, run)
        except NotFinite:
            return {"loss": math.log(self.vocab_size), "bits_per_byte": None, "curve": [], "diverged": True}

    def _speeds(self, folder: Path, results: Results) -> dict[str, float]:
        """Tokens a second of each, forward and backward in fp32 on one thread; models take turns."""
        torch.set_num_threads(1)
        ids = torch.randint(self.vocab_size, (self.batch, self.context), generator=torch.Generator().manual_seed(0))
        models = {name: build_model(self._spec(name)) for name in self.climbed}
        for model in models.values():
            init_weights(model, 0)
        turns = [{name: pass_seconds(model, ids) for name, model in models.items()} for _ in range(self.repeats + 1)]
        return {name: ids.numel() / min(turn[name] for turn in turns[1:]) for name in models}  # the first warms up


FULL: Final = Ladder(
    text="stdlib",
    characters=5_000_000,
    vocab_size=2048,
    context=256,
    plain_shape=Shape(layers=6, width=128, heads=8),
    deep_shape=Shape(layers=24, width=64, heads=4),
    steps=480,
    batch=8,
    share=1 / 3,
    rates=(3e-4, 1e-3, 3e-3),
)
"""Some three minutes a run on one of two cores, five for the deep ones."""

QUICK: Final = Ladder(
    text="stdlib",
    characters=400_000,
    vocab_size=512,
    context=64,
    plain_shape=Shape(layers=4, width=64, heads=4),
    deep_shape=Shape(layers=24, width=32, heads=2),
    steps=150,
    batch=16,
    share=0.25,
    rates=(1e-3, 3e-3, 1e-2),
)
"""A smoke test: half an hour on two cores. It shows that everything runs, and decides little."""
