"""Whether the model a recipe starts from suits its data: what a run warns of before it spends its time.

Nothing here is refused: each of these can be meant.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from intaglio.checkpoints.models import find_model, load_tokenizer
from intaglio.data.readers import read_rows
from intaglio.errors import UserError
from intaglio.specs.adapter import LoRASpec
from intaglio.text.base_or_instruct import Verdict, judge_directory, judge_tokenizer, read_applied, turn_end
from intaglio.text.chat import chat_template_of
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.batching.data import located, samples_of, sources_of
from intaglio.training.batching.preferences import compares_chats
from intaglio.training.objectives.specs import GRPOSpec, PPOSpec, PreferenceSpec
from intaglio.training.recipe import Recipe

__all__ = ["LITTLE", "misfits"]

LITTLE: Final = 1000
"""Conversations from which a large base model learns to answer (Zhou et al. 2023, "LIMA", section 2); fewer are few."""


def misfits(recipe: Recipe, tokenizer: Tokenizer) -> list[str]:
    """Warnings about a recipe that trains a model on conversations, a sentence each; none for other data.

    Args:
        recipe: as it was resolved.
        tokenizer: the run's.

    Raises:
        UserError: the data cannot be read.
    """
    if isinstance(recipe.objective, PPOSpec | GRPOSpec):
        return _own_code(recipe.objective)
    if recipe.model is None or not _is_chat(recipe):
        return []
    path = find_model(recipe.model)
    verdict = judge_directory(path) if path.is_dir() else judge_tokenizer(load_tokenizer(path))
    applied = read_applied(path)
    return [
        *_few_rows(recipe, verdict),
        *_another_template(recipe, tokenizer, verdict, applied),
        *_no_end(tokenizer),
        *_frozen_rows(recipe, applied),
    ]


def _own_code(objective: PPOSpec | GRPOSpec) -> list[str]:
    functions = [reward.function for reward in objective.rewards if reward.function and ":" in reward.function]
    return [f"{', '.join(functions)}: rewards that are code of your own, and run as such"] if functions else []


def _is_chat(recipe: Recipe) -> bool:
    """By the first row of each source."""
    if isinstance(recipe.objective, PreferenceSpec):
        return any(compares_chats(read_rows(located(source.path))) for source in sources_of(recipe))
    firsts = (next(samples_of(source), None) for source in sources_of(recipe))
    return any(first is not None and first.kind == "chat" for first in firsts)


def _few_rows(recipe: Recipe, verdict: Verdict) -> Iterator[str]:
    if verdict.kind != "base" or isinstance(recipe.objective, PreferenceSpec):
        return
    rows = (sample for source in sources_of(recipe) for sample in islice(samples_of(source), source.cap))
    count = sum(1 for _ in islice(rows, LITTLE))
    if count < LITTLE:
        yield (
            f"{recipe.model} is a base model ({verdict.reasons[0]}), and {count} conversations are few to teach one "
            "to answer: start from its instruct model, or bring 1,000 or more"
        )


def _another_template(recipe: Recipe, tokenizer: Tokenizer, verdict: Verdict, applied: dict[str, Any]) -> Iterator[str]:
    """A template put over the one that an instruct model has learned: by another tokenizer, or by `template apply`."""
    if applied.get("was") == "instruct":
        yield f"{recipe.model}'s own chat template was replaced by {applied['template']}, which it has not learned"
    if recipe.model is None or not isinstance(recipe.tokenizer, str) or verdict.kind != "instruct":
        return
    if load_tokenizer(recipe.model).chat_template != tokenizer.chat_template:
        yield (
            f"the chat template of {recipe.tokenizer} is put over {recipe.model}'s own, which it has learned: "
            "leave `tokenizer` out, unless it is to unlearn that"
        )


def _no_end(tokenizer: Tokenizer) -> Iterator[str]:
    try:
        end = turn_end(chat_template_of(tokenizer))
    except UserError:  # told when the rows are rendered
        return
    stops = [stop for stop in map(tokenizer.token, tokenizer.eos_token_ids) if stop]
    if not any(end.startswith(stop) for stop in stops):
        yield f"answers end in {end!r}, at which the model does not stop: put it into generation_config.json"


def _frozen_rows(recipe: Recipe, applied: dict[str, Any]) -> Iterator[str]:
    """Tokens that are new to the model, while neither embeddings nor output matrix learn."""
    adapter = recipe.adapter
    new = applied.get("added_tokens")
    if not new or not isinstance(adapter, LoRASpec):
        return
    if set(adapter.trainable_token_indices) >= set(new.values()) or adapter.modules_to_save:
        return
    yield (
        f"the tokens {', '.join(new)} are new, and their rows stay the mean of all others: set "
        f"adapter.trainable_token_indices={sorted(new.values())}"
    )
