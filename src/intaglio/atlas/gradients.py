"""How much of the gradient reaches the first token as the sequence grows: vanishing, exploding, and held by gates.

|d loss at the last step / d embedding of the first token|, of untrained models on random tokens, in float64. An RNN's
step multiplies the gradient by its recurrent matrix and by slopes below 1 (Bengio et al. 1994; Pascanu et al. 2013,
arXiv 1211.5063): where every singular value of the matrix is `scale`, T steps multiply it by at most scale^T. A gate
that is open multiplies it by nearly 1. How far gates are open at the start is a choice: as our cells begin (forget
gate's bias 1, update gate's 0), or each unit with a memory of its own, up to the longest sequence (Tallec and Ollivier
2018, arXiv 1804.11188, equation 16).

Legend: B sequences, T tokens, H hidden features.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio.atlas.contestants import RECURRENT
from intaglio.atlas.findings import Finding, Verdict, claim, shown_interval
from intaglio.atlas.parts import Results, Stage
from intaglio.models.init import init_weights
from intaglio.models.recurrent import RecurrentModel
from intaglio.parts.recurrent import Cell
from intaglio.specs import RecurrentSpec

__all__ = ["Gradients", "gradient_norms"]

Change = Callable[[Cell, int, torch.Generator], None]
"""What is done to a fresh cell, knowing the longest sequence."""

_VOCABULARY: Final = 64
_FLOOR: Final = 1e-300  # below it float64 has no logarithm left
_LOST: Final = 3.0
"""Powers of ten that make a gradient vanished, or exploded, or no longer held."""


@torch.no_grad()
def _scaled(scale: float, cell: Cell, longest: int, generator: torch.Generator) -> None:
    """Every singular value of the recurrent matrix becomes `scale`."""
    cell.state_weight.normal_(generator=generator)
    cell.state_weight.copy_(scale * torch.linalg.qr(cell.state_weight)[0])


@torch.no_grad()
def _remembering(cell: Cell, longest: int, generator: torch.Generator) -> None:
    """Memories of 1 to `longest` steps: the keeping gate's bias is the logarithm of one, a forget gate's input less."""
    size = cell.hidden_size
    memory = torch.empty(size, dtype=cell.bias.dtype).uniform_(1, max(longest - 1, 2), generator=generator).log()
    if cell.states == 2:  # LSTM: output, forget, input, candidate
        cell.bias[size : 2 * size], cell.bias[2 * size : 3 * size] = memory, -memory
    else:  # GRU: update, reset, candidate
        cell.bias[:size] = memory


def _as_it_is(cell: Cell, longest: int, generator: torch.Generator) -> None:
    pass


_CURVES: Final[dict[str, tuple[str, Change]]] = {
    "RNN, scale 0.5": ("RNN", partial(_scaled, 0.5)),
    "RNN, scale 1": ("RNN", partial(_scaled, 1.0)),
    "RNN, scale 2": ("RNN", partial(_scaled, 2.0)),
    "LSTM": ("LSTM", _as_it_is),
    "GRU": ("GRU", _as_it_is),
    "LSTM, gates open": ("LSTM", _remembering),
    "GRU, gates open": ("GRU", _remembering),
}


@dataclass(frozen=True)
class Gradients:
    """See above.

    Attributes:
        lengths: of the sequences, from the shortest.
        hidden_size: H, of all models; embeddings are as wide.
        sequences: B, of each length.
        seeds: weights, each with sequences of its own.
    """

    name: ClassVar[str] = "gradients"
    lengths: tuple[int, ...]
    hidden_size: int
    sequences: int
    seeds: int = 3

    def plain(self) -> dict[str, Any]:
        """See `Claims`."""
        return {**asdict(self), "lengths": list(self.lengths)}

    def stages(self) -> list[Stage]:
        """See `Claims`."""
        return [{f"{curve}, seed {s}": partial(self._part, curve, s) for curve in _CURVES for s in range(self.seeds)}]

    def finding(self, results: Results) -> Finding:
        """See `Claims`."""
        logs = {curve: np.log10([results[f"{curve}, seed {s}"] for s in range(self.seeds)]) for curve in _CURVES}
        means = {curve: norms.mean(axis=(0, 2)).tolist() for curve, norms in logs.items()}  # by length
        change = {curve: norms[:, -1] - norms[:, 0] for curve, norms in logs.items()}  # (seeds, sequences)
        return Finding(
            title=f"log10 of the gradient's norm at the first token, {self.hidden_size} hidden features",
            columns=("model", *(f"{length} tokens" for length in self.lengths), "change"),
            rows=[
                (curve, *(f"{mean:.1f}" for mean in means[curve]), shown_interval(change[curve], 1))
                for curve in _CURVES
            ],
            verdicts=self._verdicts(change),
            panels={
                "log10 of the gradient's norm": {
                    curve: list(zip(self.lengths, means[curve], strict=True)) for curve in _CURVES
                }
            },
            across="tokens",
        )

    def _verdicts(self, change: dict[str, np.ndarray]) -> list[Verdict]:
        lengths = f"from {self.lengths[0]} to {self.lengths[-1]} tokens"
        vanishing, exploding = "RNN, scale 0.5", "RNN, scale 2"
        held = [curve for curve in _CURVES if not curve.startswith("RNN")]
        beyond, spare = "powers of ten beyond", "powers of ten to spare"
        return [
            claim(f"{vanishing}: vanishes to less than a thousandth {lengths}", -change[vanishing] - _LOST, beyond),
            claim(f"{exploding}: explodes to more than a thousandfold {lengths}", change[exploding] - _LOST, beyond),
            *(
                claim(f"{curve}: held within a factor of a thousand {lengths}", _LOST - abs(change[curve]), spare)
                for curve in held
            ),
        ]

    def _part(self, curve: str, seed: int, folder: Path, results: Results) -> list[list[float]]:
        """(lengths, sequences) norms."""
        kind, change = _CURVES[curve]
        model = self._model(kind, seed)
        generator = torch.Generator().manual_seed(seed)
        for cell in (module for module in model.modules() if isinstance(module, Cell)):
            change(cell, self.lengths[-1], generator)
        ids = torch.randint(_VOCABULARY, (self.sequences, self.lengths[-1] + 1), generator=generator)
        return [gradient_norms(model, ids[:, -length - 1 :]).clamp(min=_FLOOR).tolist() for length in self.lengths]

    def _model(self, kind: str, seed: int) -> RecurrentModel:
        spec = RecurrentSpec.model_validate(
            {
                "vocab_size": _VOCABULARY,
                "embedding_size": self.hidden_size,
                "hidden_size": self.hidden_size,
                "cell": {"kind": RECURRENT[kind]},
            }
        )
        model = RecurrentModel(spec).double()
        init_weights(model, seed)
        nn.init.normal_(model.embed_tokens.weight, 0.0, 1 / math.sqrt(self.hidden_size), _generator(seed))
        return model


def gradient_norms(model: RecurrentModel, ids: Tensor) -> Tensor:
    """|d loss of the last token / d embedding of the first|, of sequences (B, T + 1): (B,)."""
    read = model.embed_tokens(ids[:, :-1]).detach().requires_grad_()  # (B, T, E)
    outputs, _ = model.recurrent(read)
    loss = F.cross_entropy(model.logits(outputs[:, -1]), ids[:, -1], reduction="sum")
    (gradient,) = torch.autograd.grad(loss, read)
    norms: Tensor = gradient[:, 0].norm(dim=-1)
    return norms


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
