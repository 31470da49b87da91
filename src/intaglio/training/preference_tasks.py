"""Learning from comparisons as tasks: a reward model, DPO, ORPO and KTO put together from a recipe."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from intaglio.checkpoints.classifiers import has_pad, save_classifier
from intaglio.checkpoints.save import save_model
from intaglio.data.mixture import Mixture
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier, init_head
from intaglio.models.resize import grow_vocabulary
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.batching.batches import Batch
from intaglio.training.batching.data import Data
from intaglio.training.batching.forks import ForkedBatch, ForkedExample, make_forked
from intaglio.training.batching.preferences import ForkStream, forked_documents
from intaglio.training.objectives.dpo import DPO
from intaglio.training.objectives.kto import KTO, make_rotated
from intaglio.training.objectives.objective import Objective
from intaglio.training.objectives.orpo import ORPO, orpo_batches
from intaglio.training.objectives.preference_specs import DPOSpec, KTOSpec, ORPOSpec, PairwiseRewardSpec
from intaglio.training.objectives.reward import PairwiseReward
from intaglio.training.recipe import AdapterFrom, Recipe
from intaglio.training.reference import Computed, Reference, chosen_kind, precompute, starting_model
from intaglio.training.start import build_decoder

__all__ = ["OddsRatio", "PreferenceTask", "Rewarding", "WithReference", "WithoutPairs"]

Say = Callable[[str], None]


class PreferenceTask:
    """What all tasks on documents that fork have in common; see `tasks.Task`.

    Args:
        recipe: the run's.
        data: of documents that fork.
        say: told what takes long.
    """

    predicts_text = False

    def __init__(self, recipe: Recipe, data: Data, say: Say) -> None:
        self._recipe, self._data, self._say = recipe, data, say
        self._room = 2 * recipe.max_length
        self._decoder: Decoder | None = None

    def stream(self) -> ForkStream:
        """See `tasks.Task`."""
        recipe = self._recipe
        rows = recipe.micro_batch, self._room, recipe.packing
        return ForkStream(self._data.train, self._made, self._annotated, *rows, recipe.seed)

    def model(self, tokenizer: Tokenizer) -> Any:
        """See `tasks.Task`."""
        self._decoder = build_decoder(self._recipe, tokenizer)
        return self._decoder

    def held_out(self) -> list[Batch]:
        """See `tasks.Task`."""
        if not len(self._data.validation):
            return []
        recipe = self._recipe
        documents = forked_documents(self._data.validation, recipe.micro_batch, self._room, recipe.packing)
        return self._annotated([self._made(examples) for examples in self._grouped(documents)])

    def save(self, model: Any, path: Path, tokenizer: Tokenizer) -> None:
        """See `tasks.Task`."""
        save_model(model, path, tokenizer)

    def _made(self, examples: Sequence[ForkedExample]) -> ForkedBatch:
        return make_forked(examples)

    def _annotated(self, batches: Sequence[Batch]) -> list[Batch]:
        return list(batches)

    def _grouped(self, documents: Iterator[list[ForkedExample]]) -> Iterator[list[ForkedExample]]:
        return documents


class Rewarding(PreferenceTask):
    """A reward model."""

    def __init__(self, recipe: Recipe, spec: PairwiseRewardSpec, data: Data, say: Say) -> None:
        super().__init__(recipe, data, say)
        self._spec = spec

    def model(self, tokenizer: Tokenizer) -> Any:
        """See `tasks.Task`: a head of its own, and no output matrix.

        A whole model whose vocabulary has no room for a pad token gets a row for one; an adapter's base stays as it is.
        """
        decoder = build_decoder(self._recipe, tokenizer)
        rows = decoder.spec.vocab_size
        if self._recipe.adapter is None and not has_pad(tokenizer, rows):
            grow_vocabulary(decoder, min(tokenizer.num_ids, rows), tokenizer.num_ids + 1)
        model = SequenceClassifier(decoder, 1)
        init_head(model, self._recipe.seed + 1)  # the decoder's own weights may come from that seed
        model.drop_outputs()
        return model

    def objective(self) -> Objective:
        """See `tasks.Task`."""
        return PairwiseReward(self._spec.center, self._spec.margin)

    def save(self, model: Any, path: Path, tokenizer: Tokenizer) -> None:
        """See `tasks.Task`."""
        save_classifier(model, path, tokenizer)


class OddsRatio(PreferenceTask):
    """ORPO."""

    def __init__(self, recipe: Recipe, spec: ORPOSpec, data: Data, say: Say) -> None:
        super().__init__(recipe, data, say)
        self._spec = spec

    def objective(self) -> Objective:
        """See `tasks.Task`."""
        return ORPO(self._spec.beta, self._spec.nll, self._spec.chunk)

    def _annotated(self, batches: Sequence[Batch]) -> list[Batch]:
        return [*orpo_batches(batches, self._spec.nll)]


class WithReference(PreferenceTask):
    """DPO and its like."""

    def __init__(self, recipe: Recipe, spec: DPOSpec, data: Data, say: Say) -> None:
        super().__init__(recipe, data, say)
        self._spec = spec

    def objective(self) -> Objective:
        """See `tasks.Task`; the model as it is now becomes the reference."""
        spec, model = self._spec, _built(self._decoder)
        kind = _kind(self._recipe, spec)
        reference: Reference
        if kind == "precomputed":
            reference = precompute(model, self._asked(), spec.chunk, self._say)
        else:
            reference = Computed(starting_model(kind, model), spec.chunk)
        return DPO(reference, spec.loss, spec.beta, spec.label_smoothing, spec.chunk)

    def _asked(self) -> Iterator[ForkedBatch]:
        """All examples that the run may come to."""
        recipe, train = self._recipe, self._data.train
        assert isinstance(train, Mixture)
        for store in (train.every(recipe.seed), self._data.validation):
            if len(store):
                yield from map(make_forked, forked_documents(store, recipe.micro_batch, self._room, "best_fit"))


class WithoutPairs(PreferenceTask):
    """KTO."""

    def __init__(self, recipe: Recipe, spec: KTOSpec, data: Data, say: Say) -> None:
        super().__init__(recipe, data, say)
        self._spec = spec
        say(_balance_of_labels(spec, data))

    def objective(self) -> Objective:
        """See `tasks.Task`; the model as it is now becomes the reference."""
        spec, model = self._spec, _built(self._decoder)
        kind = _kind(self._recipe, spec)
        reference = Computed(starting_model("copy" if kind == "precomputed" else kind, model), spec.chunk)
        return KTO(reference, spec.beta, spec.desirable_weight, spec.undesirable_weight, spec.chunk)

    def _made(self, examples: Sequence[ForkedExample]) -> ForkedBatch:
        return make_rotated(examples, self._recipe.max_length)

    def _grouped(self, documents: Iterator[list[ForkedExample]]) -> Iterator[list[ForkedExample]]:
        """An example that is left over joins those before it: alone it would be given its own answer."""
        groups = list(documents)
        if len(groups) > 1 and len(groups[-1]) == 1:
            groups[-2:] = [groups[-2] + groups[-1]]
        return iter(groups)


def _built(model: Decoder | None) -> Decoder:
    assert model is not None, "a task's model comes before its objective"
    return model


def _kind(recipe: Recipe, spec: DPOSpec | KTOSpec) -> Any:
    adapter: Literal["none", "new", "begun"] = "none"
    if recipe.adapter is not None:
        adapter = "begun" if isinstance(recipe.adapter, AdapterFrom) else "new"
    return chosen_kind(spec.reference, adapter)


def _balance_of_labels(spec: KTOSpec, data: Data) -> str:
    """How many answers of each kind there are, and whether their weights suit them (KTO, section 4.2)."""
    store = next(data.train.windows(0, 0))
    wanted = sum(bool(getattr(store[i], "desirable", True)) for i in range(len(store)))
    unwanted = len(store) - wanted
    said = f"{wanted} answers that were wanted, {unwanted} that were not"
    if not wanted or not unwanted:
        return f"{said}: of one kind alone there is little to learn"
    ratio = spec.desirable_weight * wanted / max(spec.undesirable_weight * unwanted, 1e-9)
    within = 1 <= ratio <= 4 / 3
    advice = (
        "" if within else f"; desirable_weight={spec.undesirable_weight * unwanted / wanted:.3g} would even that out"
    )
    return f"{said}; with their weights as {ratio:.2f} to 1{advice}"
