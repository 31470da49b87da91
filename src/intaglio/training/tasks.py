"""What is learned: the head, the batches and the loss that belong to an objective, and how its model is saved."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from intaglio.checkpoints.classifiers import save_classifier
from intaglio.checkpoints.save import save_model
from intaglio.checkpoints.taggers import save_tagger
from intaglio.errors import UserError
from intaglio.models.encoder_decoder import EncoderDecoder
from intaglio.models.heads import SequenceClassifier, Tagger, init_head
from intaglio.models.init import init_cells
from intaglio.models.recurrent import RecurrentEncoder, RecurrentModel
from intaglio.models.seq2seq import Seq2Seq
from intaglio.specs import RecurrentSpec
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.batching.batches import AnnotatedStream, Batch, BatchStream, evaluation_batches
from intaglio.training.batching.data import Data
from intaglio.training.batching.labelled import labelled_batches
from intaglio.training.batching.lanes import LaneStream, lane_batches
from intaglio.training.batching.pairs import PairStream, pair_batches
from intaglio.training.batching.tagged import tagged_batches
from intaglio.training.objectives.classifier import Classifier
from intaglio.training.objectives.language_model import LanguageModel
from intaglio.training.objectives.objective import Objective
from intaglio.training.objectives.seq2seq import Seq2SeqLoss
from intaglio.training.objectives.specs import (
    ClassifierSpec,
    DPOSpec,
    GRPOSpec,
    KTOSpec,
    LanguageModelSpec,
    ORPOSpec,
    PairwiseRewardSpec,
    PPOSpec,
    Seq2SeqSpec,
    TaggerSpec,
    TruncatedBPTTSpec,
)
from intaglio.training.objectives.tagger import TagLoss
from intaglio.training.objectives.truncated_bptt import TruncatedBPTT
from intaglio.training.preference_tasks import OddsRatio, Rewarding, WithoutPairs, WithReference
from intaglio.training.processes.ranks import ALONE, Ranks
from intaglio.training.recipe import Recipe
from intaglio.training.rl.tasks import GroupPolicy, PolicyWithCritic
from intaglio.training.start import build_decoder, build_model, build_spec, unfit
from intaglio.training.stepping.tricks import NoisyEmbeddings

__all__ = ["Task", "task_of"]


class Task(Protocol):
    """What a run asks for, in this order."""

    predicts_text: bool
    """Whether the targets are tokens, so that bits per byte mean something."""

    def stream(self) -> BatchStream:
        """Where batches come from."""

    def model(self, tokenizer: Tokenizer) -> Any:
        """What is trained, in fp32, on the device of the recipe.

        Raises:
            UserError: the recipe's model is of a kind that the objective is not for.
        """

    def objective(self) -> Objective:
        """What is minimised."""

    def held_out(self) -> list[Batch]:
        """What it is measured on; nothing where nothing is held out."""

    def save(self, model: Any, path: Path, tokenizer: Tokenizer) -> None:
        """Writes a model directory."""


def task_of(recipe: Recipe, data: Data, say: Callable[[str], None] = lambda line: None, ranks: Ranks = ALONE) -> Task:
    """The task that a recipe's objective is; `say` is told what takes long before the first step, `ranks` share it."""
    match recipe.objective:
        case LanguageModelSpec() as spec:
            return _LanguageModelling(recipe, spec, data)
        case ClassifierSpec() as spec:
            return _Classification(recipe, spec, data)
        case TruncatedBPTTSpec() as spec:
            return _RecurrentModelling(recipe, spec, data)
        case Seq2SeqSpec() as spec:
            return _Translation(recipe, spec, data)
        case TaggerSpec():
            return _Tagging(recipe, data)
        case PairwiseRewardSpec() as spec:
            return Rewarding(recipe, spec, data, say)
        case DPOSpec() as spec:
            return WithReference(recipe, spec, data, say)
        case ORPOSpec() as spec:
            return OddsRatio(recipe, spec, data, say)
        case KTOSpec() as spec:
            return WithoutPairs(recipe, spec, data, say)
        case PPOSpec() as spec:
            return PolicyWithCritic(recipe, spec, data, ranks)
        case GRPOSpec() as spec:
            return GroupPolicy(recipe, spec, data, ranks)


class _LanguageModelling:
    predicts_text = True

    def __init__(self, recipe: Recipe, spec: LanguageModelSpec, data: Data) -> None:
        self._recipe, self._spec, self._data = recipe, spec, data

    def stream(self) -> BatchStream:
        recipe = self._recipe
        return BatchStream(self._data.train, recipe.micro_batch, recipe.max_length, recipe.packing, recipe.seed)

    def model(self, tokenizer: Tokenizer) -> Any:
        return build_decoder(self._recipe, tokenizer)

    def objective(self) -> Objective:
        objective: Objective = LanguageModel(self._spec.chunk, self._spec.z_loss)
        return NoisyEmbeddings(objective, self._recipe.neftune) if self._recipe.neftune else objective

    def held_out(self) -> list[Batch]:
        return _held_out(self._recipe, self._data)

    def save(self, model: Any, path: Path, tokenizer: Tokenizer) -> None:
        save_model(model, path, tokenizer)


class _Classification:
    predicts_text = False

    def __init__(self, recipe: Recipe, spec: ClassifierSpec, data: Data) -> None:
        assert data.labels is not None
        self._recipe, self._spec, self._data, self._labels = recipe, spec, data, data.labels

    def stream(self) -> BatchStream:
        recipe, train = self._recipe, self._data.train
        annotate = partial(labelled_batches, labels=self._labels)
        return AnnotatedStream(train, annotate, recipe.micro_batch, recipe.max_length, recipe.packing, recipe.seed)

    def model(self, tokenizer: Tokenizer) -> Any:
        model = SequenceClassifier(build_decoder(self._recipe, tokenizer), len(self._labels.names), self._labels.names)
        init_head(model, self._recipe.seed + 1)  # the decoder's own weights may come from that seed
        if not self._spec.lm_weight:
            model.drop_outputs()
        return model

    def objective(self) -> Objective:
        return Classifier(self._spec.lm_weight, self._spec.chunk)

    def held_out(self) -> list[Batch]:
        return [*labelled_batches(_held_out(self._recipe, self._data), self._labels)]

    def save(self, model: Any, path: Path, tokenizer: Tokenizer) -> None:
        save_classifier(model, path, tokenizer)


class _RecurrentModelling:
    predicts_text = True

    def __init__(self, recipe: Recipe, spec: TruncatedBPTTSpec, data: Data) -> None:
        self._recipe, self._spec, self._data = recipe, spec, data

    def stream(self) -> BatchStream:
        recipe = self._recipe
        return LaneStream(self._data.train, recipe.micro_batch, recipe.max_length, self._spec.carry, recipe.seed)

    def model(self, tokenizer: Tokenizer) -> Any:
        model = build_model(self._recipe, tokenizer)
        if not isinstance(model, RecurrentModel):
            raise unfit(self._recipe, "recurrent models", "take objective language_model")
        return model

    def objective(self) -> Objective:
        return TruncatedBPTT(self._spec.chunk)

    def held_out(self) -> list[Batch]:
        recipe = self._recipe
        return [*lane_batches(self._data.validation, recipe.micro_batch, recipe.max_length, self._spec.carry)]

    def save(self, model: Any, path: Path, tokenizer: Tokenizer) -> None:
        save_model(model, path, tokenizer)


class _Translation:
    predicts_text = True

    def __init__(self, recipe: Recipe, spec: Seq2SeqSpec, data: Data) -> None:
        self._recipe, self._spec, self._data = recipe, spec, data

    def stream(self) -> BatchStream:
        recipe = self._recipe
        return PairStream(self._data.train, recipe.micro_batch, recipe.max_length, recipe.seed)

    def model(self, tokenizer: Tokenizer) -> Any:
        model = build_model(self._recipe, tokenizer)
        if not isinstance(model, Seq2Seq | EncoderDecoder):
            raise unfit(self._recipe, "encoder-decoders", "name one, or take another objective")
        if self._spec.scheduled_sampling and isinstance(model, EncoderDecoder):
            what = "scheduled sampling is for recurrent decoders: this one reads all tokens of a target at once"
            raise UserError(what, where="objective: scheduled_sampling", mend="leave it out")
        return model

    def objective(self) -> Objective:
        return Seq2SeqLoss(self._spec.label_smoothing, self._spec.scheduled_sampling)

    def held_out(self) -> list[Batch]:
        return [*pair_batches(self._data.validation, self._recipe.micro_batch)]

    def save(self, model: Any, path: Path, tokenizer: Tokenizer) -> None:
        save_model(model, path, tokenizer)


class _Tagging:
    predicts_text = False

    def __init__(self, recipe: Recipe, data: Data) -> None:
        assert data.tags is not None
        self._recipe, self._data, self._tags = recipe, data, data.tags

    def stream(self) -> BatchStream:
        recipe, train = self._recipe, self._data.train
        annotate = partial(tagged_batches, tags=self._tags)
        return AnnotatedStream(train, annotate, recipe.micro_batch, recipe.max_length, recipe.packing, recipe.seed)

    def model(self, tokenizer: Tokenizer) -> Any:
        spec = build_spec(self._recipe, tokenizer)
        if self._recipe.model is not None or not isinstance(spec, RecurrentSpec):
            raise unfit(self._recipe, "recurrent encoders from random weights", "give an architecture of that kind")
        if spec.tie_embeddings:
            raise UserError("a tagger has no output matrix to tie", where="architecture: tie_embeddings")
        tagger = Tagger(RecurrentEncoder(spec), len(self._tags.names))
        init_cells(tagger, torch.Generator().manual_seed(self._recipe.seed))
        return tagger.to(self._recipe.device)

    def objective(self) -> Objective:
        return TagLoss()

    def held_out(self) -> list[Batch]:
        return tagged_batches(_held_out(self._recipe, self._data), self._tags)

    def save(self, model: Any, path: Path, tokenizer: Tokenizer) -> None:
        save_tagger(model, self._tags.names, path, tokenizer)


def _held_out(recipe: Recipe, data: Data) -> list[Batch]:
    if not len(data.validation):
        return []
    return list(evaluation_batches(data.validation, recipe.micro_batch, recipe.max_length, recipe.packing))
