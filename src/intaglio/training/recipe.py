"""A recipe: one run as data. Defaults < YAML < command line; an unknown key is an error."""

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Discriminator, Field, Tag, model_validator

from intaglio.errors import UserError
from intaglio.specs import Spec, load_yaml, validate
from intaglio.specs.base import kind_or
from intaglio.training.answers import AnswersSpec
from intaglio.training.closing import CodeSpec
from intaglio.training.optimizer import OptimizerSpec
from intaglio.training.schedule import ScheduleSpec

__all__ = ["ClassifierSpec", "LanguageModelSpec", "Recipe", "SourceSpec", "load_recipe"]


class SourceSpec(Spec):
    """One source of rows.

    Attributes:
        path: a file, folder or glob, or the name of a data set that `intaglio pull` knows.
        weight: its share of the rows, in relation to the other sources'; for all sources or none.
        cap: rows at most.
    """

    path: str
    weight: float | None = Field(None, gt=0)
    cap: int | None = Field(None, gt=0)


class TokenizerSpec(Spec):
    """A tokenizer to be trained on the run's own text."""

    vocab_size: int = Field(gt=256)


class LanguageModelSpec(Spec):
    """See `objectives.language_model`."""

    kind: Literal["language_model"] = "language_model"
    chunk: int = Field(1024, gt=0)
    z_loss: float = Field(0.0, ge=0)


class ClassifierSpec(Spec):
    """See `objectives.classifier`.

    Attributes:
        labels: their names in order; none takes those of the data, sorted.
        lm_weight: of the next-token loss beside the class loss.
        chunk: see `LanguageModelSpec`.
        delimiter: stands between `text` and `text_pair`; GPT-1 has `$`.
    """

    kind: Literal["classifier"] = "classifier"
    labels: tuple[str | int, ...] = ()
    lm_weight: float = Field(0.5, ge=0)
    chunk: int = Field(1024, gt=0)
    delimiter: str = "$"


ObjectiveSpec = Annotated[
    Annotated[LanguageModelSpec, Tag("language_model")] | Annotated[ClassifierSpec, Tag("classifier")],
    Discriminator(kind_or("language_model")),
]


class Recipe(Spec):
    """Everything a run depends on.

    Attributes:
        model: start from these weights: a pulled name, a directory, a GGUF file.
        architecture: or from random ones: a preset's name, or a spec.
        tokenizer: the model's own, unless another is named or one is to be trained.
        data: a path, or sources to be mixed.
        validation: share of the rows (by hash of their content) that is held out and never trained on.
        split_by: what the hash is of; `file` keeps all rows of a file on one side.
        near_duplicates: held-out rows of which training has more than this share of 13-token windows are removed.
        supervise: which tokens are targets; None goes by the format (all of a text, completions, assistants' turns).
        max_length: tokens of a row.
        over_long: rows beyond it are truncated or dropped; both are counted.
        packing: how rows share a sequence; none gives each its own.
        micro_batch: sequences that run together.
        accumulation: micro-batches of an optimizer step.
        steps, epochs: how long; one of the two.
        precision: what the model computes in; master weights are fp32.
        clip: norm that gradients are scaled down to; 0 does not.
        checkpointing: keep the input of every so many layers and compute the rest again; 0 keeps everything.
        neftune: noise on the embeddings while training (Jain et al. 2023); 0 for none.
        evaluate_every, save_every, sample_every: in steps; 0 for never (the end always saves).
        prompts: what samples continue.
        keep: checkpoints that stay.
        answers: held-out conversations to be answered before and after; see `answers`.
        yardsticks: print what a byte 5-gram and `xz -9` make of the held-out texts.
        code: samples of code to be parsed at the end; see `closing`.
        patience: evaluations without a better loss after which the run ends; 0 for never.
    """

    model: str | None = None
    architecture: str | dict[str, Any] | None = None
    tokenizer: str | TokenizerSpec | None = None
    data: str | tuple[SourceSpec, ...]
    validation: float = Field(0.02, ge=0, lt=1)
    split_by: Literal["content", "file"] = "content"
    near_duplicates: float | None = Field(None, gt=0, le=1)
    supervise: Literal["all", "completion", "assistant", "last_assistant"] | None = None
    max_length: int = Field(1024, gt=1)
    over_long: Literal["truncate", "drop"] = "truncate"
    packing: Literal["best_fit", "contiguous", "none"] = "best_fit"
    micro_batch: int = Field(4, gt=0)
    accumulation: int = Field(1, gt=0)
    steps: int | None = Field(None, gt=0)
    epochs: float | None = Field(None, gt=0)
    precision: Literal["bfloat16", "float32"] = "bfloat16"
    objective: ObjectiveSpec = LanguageModelSpec()
    optimizer: OptimizerSpec = OptimizerSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    clip: float = Field(1.0, ge=0)
    checkpointing: int = Field(0, ge=0)
    neftune: float = Field(0.0, ge=0)
    evaluate_every: int = Field(100, ge=0)
    save_every: int = Field(200, ge=0)
    sample_every: int = Field(0, ge=0)
    prompts: tuple[str, ...] = ()
    sample_tokens: int = Field(64, gt=0)
    keep: Annotated[int, Field(gt=0)] = 2
    patience: int = Field(0, ge=0)
    answers: AnswersSpec | None = None
    yardsticks: bool = False
    code: CodeSpec | None = None
    seed: int = 0
    device: str = "cpu"
    threads: int | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _decided(self) -> "Recipe":
        if (self.model is None) == (self.architecture is None):
            raise ValueError("give model (weights to start from) or architecture (random ones), one of the two")
        if self.architecture is not None and self.tokenizer is None:
            raise ValueError("random weights need a tokenizer: name one, or tokenizer: {vocab_size: N} trains one")
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give steps or epochs, one of the two")
        if self.sample_every and not self.prompts:
            raise ValueError("sample_every needs prompts")
        if isinstance(self.objective, ClassifierSpec):
            self._fit_a_classifier()
        return self

    def _fit_a_classifier(self) -> None:
        if self.packing == "contiguous":
            raise ValueError("packing contiguous cuts documents, and a classifier reads each at its end")
        beside = {"supervise": self.supervise, "sample_every": self.sample_every, "neftune": self.neftune}
        given = next((name for name, value in beside.items() if value), None)
        if given:
            raise ValueError(f"{given} means nothing to objective classifier")


def load_recipe(path: Path, changes: list[str]) -> Recipe:
    """A recipe file with `key=value` changes, keys dotted (`optimizer.learning_rate=1e-4`), values YAML.

    Raises:
        UserError: no such file, an unknown key (with the nearest), a value that does not fit.
    """
    data = load_yaml(path)
    if not isinstance(data, dict):
        raise UserError("not a mapping of keys to values", where=str(path))
    for change in changes:
        _apply(data, change)
    recipe: Recipe = validate(Recipe, data, str(path))
    return recipe


def _apply(data: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise UserError(f"not key=value: {change!r}", where="command line")
    *parents, last = key.split(".")
    for parent in parents:
        data = data.setdefault(parent, {})
        if not isinstance(data, dict):
            raise UserError(f"{parent!r} holds no keys", where=key)
    try:
        data[last] = _number(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise UserError(f"not a YAML value: {text!r}", where=key) from error


def _number(value: Any) -> Any:
    """YAML 1.1 reads 1e-4 as text; nobody else does."""
    try:
        return float(value) if isinstance(value, str) and value[:1] in "+-.0123456789" else value
    except ValueError:
        return value
