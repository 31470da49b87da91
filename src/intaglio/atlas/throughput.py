"""Training throughput as the sequence grows: a recurrent model computes its steps one after the other.

A Transformer's layers work on all tokens of a sequence at once, so that a longer one makes better use of a machine; a
recurrent layer has one token to work on at a time, however many follow. So few sequences are trained on together that
time is all there is to be parallel over. Measured is a forward and a backward pass, in fp32, of models equal in
parameters, which take turns, so that what else the machine does hits all of them alike. The time of a length is the
least of several, which is the least disturbed.
"""

import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intaglio.atlas.contestants import KINDS, RECURRENT, architecture, spec_of
from intaglio.atlas.findings import Finding, Verdict, claim, shown_interval
from intaglio.atlas.parts import Results, Stage
from intaglio.models.build import build_model
from intaglio.models.init import init_weights

__all__ = ["Throughput", "pass_seconds"]


@dataclass(frozen=True)
class Throughput:
    """See above.

    Attributes:
        lengths: of the sequences, from the shortest.
        sequences: of a pass.
        parameters, width: see `architecture`.
        repeats: passes of which the quickest counts.
        seeds: weights and tokens.
    """

    name: ClassVar[str] = "throughput"
    lengths: tuple[int, ...]
    sequences: int
    parameters: int
    width: int
    repeats: int
    seeds: int = 3

    def plain(self) -> dict[str, Any]:
        """See `Claims`."""
        return {**asdict(self), "lengths": list(self.lengths)}

    def stages(self) -> list[Stage]:
        """See `Claims`."""
        return [{f"seed {seed}": partial(self._part, seed) for seed in range(self.seeds)}]

    def finding(self, results: Results) -> Finding:
        """See `Claims`."""
        times = {kind: np.array([results[f"seed {seed}"][kind] for seed in range(self.seeds)]) for kind in KINDS}
        tokens = self.sequences * np.array(self.lengths)
        micro = {kind: 1e6 * seconds / tokens for kind, seconds in times.items()}  # (seeds, lengths)
        return Finding(
            title=f"microseconds a token, forward and backward, {self.sequences} at a time, by length of the sequence",
            columns=("model", *(f"{length} tokens" for length in self.lengths)),
            rows=[
                (kind, *(shown_interval(micro[kind][:, place], 1) for place in range(len(self.lengths))))
                for kind in KINDS
            ],
            verdicts=self._verdicts(micro),
            panels={
                "microseconds a token": {
                    kind: list(zip(self.lengths, taken.mean(axis=0).tolist(), strict=True))
                    for kind, taken in micro.items()
                }
            },
            across="tokens of a sequence",
        )

    def _verdicts(self, micro: dict[str, np.ndarray]) -> list[Verdict]:
        fall = {kind: np.log2(taken[:, 0] / taken[:, -1]) for kind, taken in micro.items()}
        short, long = self.lengths[0], self.lengths[-1]
        fallen = [
            claim(
                f"from {short} to {long} tokens a token's time falls more in the Transformer than in {kind}",
                fall["Transformer"] - fall[kind],
                "halvings",
            )
            for kind in RECURRENT
        ]
        slower = [
            claim(
                f"at {long} tokens {kind} takes longer for a token than the Transformer",
                np.log2(micro[kind][:, -1] / micro["Transformer"][:, -1]),
                "doublings",
            )
            for kind in RECURRENT
        ]
        return [*fallen, *slower]

    def _part(self, seed: int, folder: Path, results: Results) -> dict[str, list[float]]:
        """Seconds of each model, by length."""
        models = {kind: self._model(kind, seed) for kind in KINDS}
        taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for length in self.lengths:
            ids = torch.randint(128, (self.sequences, length), generator=torch.Generator().manual_seed(seed))
            turns = [
                {kind: pass_seconds(model, ids) for kind, model in models.items()} for _ in range(self.repeats + 1)
            ]
            for kind, least in taken.items():
                least.append(min(turn[kind] for turn in turns[1:]))  # the first one warms up
        return taken

    def _model(self, kind: str, seed: int) -> Any:
        model = build_model(spec_of(architecture(kind, self.parameters, self.width, self.lengths[-1])))
        init_weights(model, seed)
        return model


def pass_seconds(model: Any, ids: Tensor) -> float:
    """Of a forward and a backward pass of a language model over (B, T)."""
    start = time.perf_counter()
    loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    model.zero_grad()
    return time.perf_counter() - start
