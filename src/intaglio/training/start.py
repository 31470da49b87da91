"""What a run starts from: its tokenizer, the spec of its model, the model."""

from typing import Any

from intaglio.adapters.quantize import load_quantized
from intaglio.checkpoints.models import load_model, load_tokenizer
from intaglio.errors import UserError
from intaglio.lineage.presets import preset
from intaglio.lineage.resolve import resolve_spec
from intaglio.models.build import build_model as model_of
from intaglio.models.decoder import Decoder
from intaglio.models.init import init_weights
from intaglio.specs import ModelSpec, validate_model
from intaglio.text.tokenizer import Tokenizer
from intaglio.text.train import train_on
from intaglio.text.whole_units import characters_of, words_of
from intaglio.training.batching.data import texts_to_learn_from
from intaglio.training.objectives.specs import ClassifierSpec, PairwiseRewardSpec, Seq2SeqSpec
from intaglio.training.recipe import Recipe, TokenizerSpec

__all__ = ["build_decoder", "build_model", "build_spec", "build_tokenizer", "unfit"]


def build_tokenizer(recipe: Recipe) -> Tokenizer:
    """The tokenizer a recipe names, its model's, or one made of its data."""
    match recipe.tokenizer:
        case None:
            assert recipe.model is not None
            return load_tokenizer(recipe.model)
        case str(name):
            return load_tokenizer(name)
        case TokenizerSpec(kind="characters", vocab_size=size):
            return characters_of(texts_to_learn_from(recipe), size)
        case TokenizerSpec(kind="words", vocab_size=size):
            return words_of(texts_to_learn_from(recipe), size)
        case TokenizerSpec(vocab_size=size, pattern=pattern, special_tokens=special):
            assert size is not None
            scores = isinstance(recipe.objective, ClassifierSpec | PairwiseRewardSpec)
            pads = ("<|pad|>",) if scores else ()  # see `checkpoints.classifiers`
            marks = dict.fromkeys(("<|endoftext|>", *pads, *special))
            return train_on(texts_to_learn_from(recipe), size, [*marks], pattern)


def build_spec(recipe: Recipe, tokenizer: Tokenizer) -> ModelSpec:
    """What the recipe's model is, without its weights.

    An architecture of the recipe's own has as many tokens as the tokenizer, and where it writes a target of its own,
    that begins with the tokenizer's BOS, unless it says otherwise.
    """
    if recipe.model is not None:
        spec: ModelSpec = resolve_spec(recipe.model)[1]
        return spec
    if isinstance(recipe.architecture, str):
        return preset(recipe.architecture).spec
    given: dict[str, Any] = {"vocab_size": tokenizer.vocab_size}
    if isinstance(recipe.objective, Seq2SeqSpec):
        given["start_token_id"] = tokenizer.bos_token_id
    return validate_model({**given, **(recipe.architecture or {})}, "architecture")


def build_model(recipe: Recipe, tokenizer: Tokenizer) -> Any:
    """The model a recipe starts from, of the class that its spec's kind has: in fp32, or in the compute dtype (and in
    fewer bits) where its weights stay as they are.

    Raises:
        UserError: a preset whose vocabulary is smaller than the tokenizer's; see `load_model`.
    """
    if recipe.model is not None:
        dtype = recipe.precision if recipe.adapter else "float32"
        if recipe.quantization:
            return load_quantized(recipe.model, recipe.quantization, dtype, recipe.device)
        return load_model(recipe.model, dtype=dtype, device=recipe.device)
    spec = build_spec(recipe, tokenizer)
    if tokenizer.vocab_size > spec.vocab_size:
        what = f"the tokenizer has {tokenizer.vocab_size} tokens, the architecture only {spec.vocab_size}"
        raise UserError(what, where="architecture: vocab_size", mend="leave vocab_size out, or raise it")
    model = model_of(spec)
    init_weights(model, recipe.seed)
    return model.to(recipe.device)


def build_decoder(recipe: Recipe, tokenizer: Tokenizer) -> Decoder:
    """The same where it must be a decoder.

    Raises:
        UserError: it is none; or see `build_model`.
    """
    model = build_model(recipe, tokenizer)
    if not isinstance(model, Decoder):
        raise unfit(recipe, "decoders", "name a decoder-only model, or take another objective")
    return model


def unfit(recipe: Recipe, kinds: str, mend: str) -> UserError:
    """The error where a recipe's model is of another kind than those that its objective trains."""
    name = recipe.model or (recipe.architecture if isinstance(recipe.architecture, str) else "architecture")
    return UserError(f"objective {recipe.objective.kind} trains {kinds}, and this is none", where=name, mend=mend)
