"""The bottleneck: right letters by source length, for a Seq2Seq without and with attention, on the copying task.

Without attention all that the decoder knows of the source is one state, however long the source is (Bahdanau et al.
2014, arXiv 1409.0473, section 1). Both models read the same pairs in the same order for as many steps, and choose
among the same learning rates on a seed that is not measured. The questions are fresh sources of a few lengths, the
same for all; of an answer counts the share of the source's letters that stand at their place.
"""

import random
import string
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from intaglio.atlas.findings import Finding, Verdict, claim, shown_interval
from intaglio.atlas.parts import Results, Stage
from intaglio.atlas.runs import best_rate, contest, run_recipe, write_rows
from intaglio.engine.llm import LLM
from intaglio.engine.sampling_params import SamplingParams
from intaglio.training.batching.data import samples_of
from intaglio.training.recipe import SourceSpec

__all__ = ["Copying", "right_letters"]

_MODELS: Final[dict[str, Any]] = {"without attention": None, "with attention": {"score": "additive", "fusion": "after"}}


@dataclass(frozen=True)
class Copying:
    """See above.

    Attributes:
        data: a data set's name, or a path: pairs of a text and itself.
        lengths: of the sources asked for, from the shortest; longer pairs are not trained on.
        questions: of each length.
        hidden_size: of both models; embeddings are half as wide.
        steps: of a run, each over `batch` pairs.
        rates: learning rates to choose from.
        seeds: that are measured.
    """

    name: ClassVar[str] = "copying"
    data: str
    lengths: tuple[int, ...]
    questions: int
    hidden_size: int
    steps: int
    batch: int
    rates: tuple[float, ...]
    seeds: int = 3

    def plain(self) -> dict[str, Any]:
        """See `Claims`."""
        return {**asdict(self), "rates": list(self.rates), "lengths": list(self.lengths)}

    def stages(self) -> list[Stage]:
        """See `Claims`."""
        return contest(_MODELS, self.rates, self.seeds, self._try, self._run)

    def finding(self, results: Results) -> Finding:
        """See `Claims`."""
        right = {
            model: np.array([results[f"{model}, seed {seed}"]["right"] for seed in range(1, self.seeds + 1)])
            for model in _MODELS
        }  # (seeds, lengths, questions)
        return Finding(
            title=f"right letters, %, by source length; {self.steps} steps of {self.batch} pairs",
            columns=("model", "learning rate", *(f"{length} letters" for length in self.lengths)),
            rows=[
                (
                    model,
                    f"{best_rate(results, model, self.rates):g}",
                    *(shown_interval(100 * right[model][:, place], 1) for place in range(len(self.lengths))),
                )
                for model in _MODELS
            ],
            verdicts=self._verdicts(100 * right["without attention"], 100 * right["with attention"]),
            panels={
                "right letters, %": {
                    model: list(zip(self.lengths, (100 * shares.mean(axis=(0, 2))).tolist(), strict=True))
                    for model, shares in right.items()
                }
            },
            across="letters of the source",
        )

    def _verdicts(self, without: np.ndarray, having: np.ndarray) -> list[Verdict]:
        """Of percentages (seeds, lengths, questions)."""
        short, long = self.lengths[0], self.lengths[-1]
        lost, lost_having = without[:, 0] - without[:, -1], having[:, 0] - having[:, -1]
        gained = having[:, -1] - without[:, -1]
        return [
            claim(f"without attention, {long} letters are copied worse than {short}", lost, "points"),
            claim(f"at {long} letters, attention copies better than none", gained, "points"),
            claim(f"from {short} to {long} letters, attention loses less than none", lost - lost_having, "points"),
        ]

    def _try(self, model: str, rate: float, folder: Path, results: Results) -> dict[str, Any]:
        return run_recipe(self._recipe(model, folder), rate, 0, folder / f"{model}-rate-{rate:g}")

    def _run(self, model: str, seed: int, folder: Path, results: Results) -> dict[str, Any]:
        run = folder / f"{model}-seed-{seed}"
        told = run_recipe(self._recipe(model, folder), best_rate(results, model, self.rates), seed, run)
        return {**told, "right": self._right(LLM(run / "model"))}

    def _recipe(self, model: str, folder: Path) -> dict[str, Any]:
        return {
            "architecture": {
                "kind": "seq2seq",
                "embedding_size": self.hidden_size // 2,
                "hidden_size": self.hidden_size,
                "cell": {"kind": "gru"},
                "bidirectional": True,
                "attention": _MODELS[model],
            },
            "tokenizer": {"kind": "characters"},
            "data": str(write_rows(folder / "pairs.jsonl", self._pairs())),
            "objective": {"kind": "seq2seq"},
            "validation": 0.02,
            "over_long": "drop",
            "max_length": 2 * self.lengths[-1] + 2,
            "micro_batch": self.batch,
            "steps": self.steps,
        }

    def _pairs(self) -> Iterator[dict[str, Any]]:
        for sample in samples_of(SourceSpec(path=self.data)):
            if len(str(sample.prompt)) <= self.lengths[-1]:
                yield {"prompt": sample.prompt, "completion": sample.completion}

    def _right(self, llm: LLM) -> list[list[float]]:
        """(lengths, questions) shares of right letters."""
        draw = random.Random(0)
        found = []
        for length in self.lengths:
            sources = ["".join(draw.choices(string.ascii_lowercase, k=length)) for _ in range(self.questions)]
            answers = llm.generate(sources, SamplingParams(temperature=0, max_tokens=length + 1))
            found.append([right_letters(s, answer.text) for s, answer in zip(sources, answers, strict=True)])
        return found


def right_letters(source: str, answer: str) -> float:
    """The share of the source's letters that stand at their place in the answer."""
    return sum(a == b for a, b in zip(source, answer, strict=False)) / len(source)
