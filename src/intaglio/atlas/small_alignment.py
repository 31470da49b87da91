"""Small runs of the trainer that align a model of the language of `requests`, for figures: what their logs say.

Legend: A answers to a request, T tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from intaglio.atlas.requests import answers_to, comparisons, demonstrations, prompts
from intaglio.atlas.runs import write_rows
from intaglio.checkpoints.models import load_model, load_tokenizer
from intaglio.models.decoder import Decoder
from intaglio.specs import validate
from intaglio.text.tokenizer import Tokenizer
from intaglio.text.whole_units import words_of
from intaglio.training.log import read_log
from intaglio.training.recipe import Recipe
from intaglio.training.run import finish, unheard

__all__ = ["Aligned", "by_worth", "curve", "log_probs", "open_policy", "some_prompts", "text_ids"]

Lines = list[dict[str, Any]]
"""Of a run's log."""

_LENGTH: Final = 32
_LAYERS: Final = 2


@dataclass(frozen=True)
class Aligned:
    """A base model in a folder, and runs that start from it.

    Attributes:
        folder: of everything.
        width: of the models.
        rows: of demonstrations, and of comparisons.
        batch: rows of a step.
    """

    folder: Path
    width: int
    rows: int
    batch: int

    def base(self, steps: int) -> Path:
        """Trains on demonstrations, from random weights; the model's directory."""
        layer = {
            "repeat": _LAYERS,
            "norm": {"kind": "rms_norm"},
            "attention": {"num_heads": 4, "num_kv_heads": 2, "rope": {}},
            "feed_forward": {"intermediate_size": 2 * self.width, "activation": "silu", "gated": True},
        }
        sizes = {"hidden_size": self.width, "max_position_embeddings": _LENGTH}
        self._finish(
            "base",
            demonstrations(self.rows, 0),
            architecture={**sizes, "layers": [layer]},
            tokenizer=str(self._tokenizer()),
            steps=steps,
            optimizer={"learning_rate": 5e-3, "weight_decay": 0.0},
        )
        return self.folder / "base" / "model"

    def _tokenizer(self) -> Path:
        """A token for each word of the language; its directory."""
        words_of(text for prompt in prompts() for text in (prompt, *answers_to(prompt))).save(self.folder / "tokenizer")
        return self.folder / "tokenizer"

    def from_pairs(self, name: str, steps: int, rate: float, objective: Mapping[str, Any]) -> Lines:
        """Trains the base on comparisons into the folder `name`; the log, with eight evaluations on held-out pairs."""
        return self._tuned(name, comparisons(self.rows, 1), steps, rate, objective, evaluate_every=max(1, steps // 8))

    def from_rewards(self, name: str, steps: int, rate: float, objective: Mapping[str, Any]) -> Lines:
        """Trains the base on answers of its own to requests into the folder `name`; the log."""
        asked = ({"prompt": row["prompt"]} for row in demonstrations(self.rows, 2))
        return self._tuned(name, asked, steps, rate, objective)

    def _tuned(
        self,
        name: str,
        rows: Iterable[dict[str, Any]],
        steps: int,
        rate: float,
        objective: Mapping[str, Any],
        **more: Any,
    ) -> Lines:
        optimizer = {"learning_rate": rate, "weight_decay": 0.0}
        start = str(self.folder / "base" / "model")
        return self._finish(name, rows, model=start, steps=steps, optimizer=optimizer, objective=objective, **more)

    def _finish(self, name: str, rows: Iterable[dict[str, Any]], **fields: Any) -> Lines:
        beside = {
            "data": str(write_rows(self.folder / f"{name}.jsonl", rows)),
            "validation": 0.2,
            "max_length": _LENGTH,
            "micro_batch": self.batch,
            "precision": "float32",
            "schedule": {"kind": "constant", "warmup": 0},
            "evaluate_every": 0,
            "save_every": 0,
            "keep": 1,
        }
        finish(validate(Recipe, {**beside, **fields}, name), self.folder / name, say=unheard, quiet=True)
        return read_log(self.folder / name / "log.jsonl")


def open_policy(path: Path) -> tuple[Decoder, Tokenizer]:
    """What a run has made, ready to be read."""
    return load_model(str(path), dtype="float32").eval(), load_tokenizer(path)


def text_ids(tokenizer: Tokenizer, prompt: str, answer: str) -> list[int]:
    """A request with an answer, as training has them: encoded apart, the EOS behind."""
    return [*tokenizer.encode(prompt), *tokenizer.encode(answer, False), tokenizer.eos_token_id or 0]


@torch.no_grad()
def log_probs(model: Decoder, tokenizer: Tokenizer, prompt: str) -> Tensor:
    """log p of each answer to a request: (A,)"""
    start, texts = len(tokenizer.encode(prompt)), [text_ids(tokenizer, prompt, said) for said in answers_to(prompt)]
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)  # (A, T)
    likely = model(ids)[:, :-1].log_softmax(dim=-1).gather(2, ids[:, 1:, None])[..., 0]  # (A, T - 1)
    place, lengths = torch.arange(1, ids.shape[1]), torch.tensor([len(text) for text in texts])
    return (likely * ((place >= start) & (place < lengths[:, None]))).sum(dim=1)


def by_worth(prompts: Sequence[str], values: Sequence[Tensor]) -> list[list[float]]:
    """[worth, mean] of what each prompt's answers were given, (A,) each, by what they are worth, from the least."""
    found: dict[float, list[float]] = {}
    for prompt, given in zip(prompts, values, strict=True):
        for value, mark in zip(answers_to(prompt).values(), given.tolist(), strict=True):
            found.setdefault(value, []).append(mark)
    return [[value, sum(marks) / len(marks)] for value, marks in sorted(found.items())]


def some_prompts(count: int) -> list[str]:
    """So many requests, evenly from all."""
    every = prompts()
    return every[:: max(1, len(every) // count)][:count]


def curve(lines: Lines, name: str, points: int) -> list[list[float]]:
    """[step, value] of what a log calls `name`, each the mean over a stretch, so that there are at most `points`."""
    told = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    size = max(1, -(-len(told) // points))
    stretches = [told[start : start + size] for start in range(0, len(told), size)]
    return [[sum(column) / len(some) for column in zip(*some, strict=True)] for some in stretches]
