"""What is learned: the head, the batches and the loss that belong to an objective, and how its model is saved."""

from pathlib import Path
from typing import Protocol

from intaglio.checkpoints.classifiers import save_classifier
from intaglio.checkpoints.save import save_model
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier, decoder_of, init_head
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.batches import Batch, BatchStream, evaluation_batches
from intaglio.training.data import Data
from intaglio.training.labelled import LabelledStream, labelled_batches
from intaglio.training.objectives.classifier import Classifier
from intaglio.training.objectives.language_model import LanguageModel
from intaglio.training.objectives.objective import Objective
from intaglio.training.recipe import ClassifierSpec, LanguageModelSpec, Recipe
from intaglio.training.tricks import NoisyEmbeddings

__all__ = ["Model", "Task", "task_of"]

Model = Decoder | SequenceClassifier


class Task(Protocol):
    """What a run asks for, in this order."""

    predicts_text: bool
    """Whether the targets are tokens, so that bits per byte mean something."""

    def stream(self) -> BatchStream:
        """Where batches come from."""

    def model(self, decoder: Decoder) -> Model:
        """What is trained, on a decoder that it starts from."""

    def objective(self) -> Objective:
        """What is minimised."""

    def held_out(self) -> list[Batch]:
        """What it is measured on; nothing where nothing is held out."""

    def save(self, model: Model, path: Path, tokenizer: Tokenizer) -> None:
        """Writes a model directory."""


def task_of(recipe: Recipe, data: Data) -> Task:
    """The task that a recipe's objective is."""
    if isinstance(recipe.objective, ClassifierSpec):
        return _Classification(recipe, recipe.objective, data)
    return _LanguageModelling(recipe, recipe.objective, data)


class _LanguageModelling:
    predicts_text = True

    def __init__(self, recipe: Recipe, spec: LanguageModelSpec, data: Data) -> None:
        self._recipe, self._spec, self._data = recipe, spec, data

    def stream(self) -> BatchStream:
        recipe = self._recipe
        return BatchStream(self._data.train, recipe.micro_batch, recipe.max_length, recipe.packing, recipe.seed)

    def model(self, decoder: Decoder) -> Model:
        return decoder

    def objective(self) -> Objective:
        objective: Objective = LanguageModel(self._spec.chunk, self._spec.z_loss)
        return NoisyEmbeddings(objective, self._recipe.neftune) if self._recipe.neftune else objective

    def held_out(self) -> list[Batch]:
        return _held_out(self._recipe, self._data)

    def save(self, model: Model, path: Path, tokenizer: Tokenizer) -> None:
        save_model(decoder_of(model), path, tokenizer)


class _Classification:
    predicts_text = False

    def __init__(self, recipe: Recipe, spec: ClassifierSpec, data: Data) -> None:
        assert data.labels is not None
        self._recipe, self._spec, self._data, self._labels = recipe, spec, data, data.labels

    def stream(self) -> BatchStream:
        recipe, train = self._recipe, self._data.train
        return LabelledStream(train, self._labels, recipe.micro_batch, recipe.max_length, recipe.packing, recipe.seed)

    def model(self, decoder: Decoder) -> Model:
        model = SequenceClassifier(decoder, len(self._labels.names), self._labels.names)
        init_head(model, self._recipe.seed + 1)  # the decoder's own weights may come from that seed
        if not self._spec.lm_weight:
            model.drop_outputs()
        return model

    def objective(self) -> Objective:
        return Classifier(self._spec.lm_weight, self._spec.chunk)

    def held_out(self) -> list[Batch]:
        return [*labelled_batches(_held_out(self._recipe, self._data), self._labels)]

    def save(self, model: Model, path: Path, tokenizer: Tokenizer) -> None:
        assert isinstance(model, SequenceClassifier)
        save_classifier(model, path, tokenizer)


def _held_out(recipe: Recipe, data: Data) -> list[Batch]:
    if not len(data.validation):
        return []
    return list(evaluation_batches(data.validation, recipe.micro_batch, recipe.max_length, recipe.packing))
