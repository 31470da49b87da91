"""`--dry-run`: the recipe as resolved, what the model costs, and two samples with their targets marked."""

from itertools import islice

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from intaglio.data.examples import Example, MaskPolicy, encode_sample
from intaglio.planning import plan_training
from intaglio.specs import DecoderSpec
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.data import samples_of, sources_of
from intaglio.training.recipe import Recipe
from intaglio.training.run import build_spec, build_tokenizer

__all__ = ["marked", "preview"]

_SAMPLES = 2


def preview(recipe: Recipe, console: Console | None = None) -> None:
    """Prints what a run of `recipe` would be; reads its data, builds no weights.

    Raises:
        UserError: what the recipe names is missing or does not fit.
    """
    console = console or Console()
    console.print(yaml.safe_dump(recipe.plain(), sort_keys=False, allow_unicode=True), markup=False, highlight=False)
    tokenizer = build_tokenizer(recipe)
    spec = build_spec(recipe, tokenizer)
    console.print(f"{spec.num_parameters():,} parameters, {spec.num_active_parameters():,} active", highlight=False)
    console.print(
        f"{_tokens_a_step(recipe):,} tokens a step at most, {_flops(recipe, spec):.3g} FLOPs", highlight=False
    )
    console.print(_memory(recipe, spec))
    policy = MaskPolicy(supervise=recipe.supervise)
    for sample in islice(samples_of(sources_of(recipe)[0]), _SAMPLES):
        example = encode_sample(sample, tokenizer, policy)
        targets = int(example.supervised.sum())
        console.print(f"\n{example.where}: {len(example.ids)} tokens, {targets} of them targets", highlight=False)
        console.print(marked(example, tokenizer))


def marked(example: Example, tokenizer: Tokenizer) -> Text:
    """The decoded tokens of an example, the supervised ones in colour and underlined."""
    text = Text()
    for start, stop, supervised in _runs(example):
        words = tokenizer.decode(example.ids[start:stop].tolist(), skip_special_tokens=False)
        text.append(words, style="bold green underline" if supervised else "dim")
    return text


def _runs(example: Example) -> list[tuple[int, int, bool]]:
    """Stretches of tokens that are all targets or all not."""
    mask = example.supervised.tolist()
    starts = [i for i in range(len(mask)) if i == 0 or mask[i] != mask[i - 1]]
    return [(start, stop, mask[start]) for start, stop in zip(starts, [*starts[1:], len(mask)], strict=True)]


def _memory(recipe: Recipe, spec: DecoderSpec) -> Table:
    """The most a step takes at one time, by component."""
    plan = plan_training(
        spec,
        recipe.micro_batch * recipe.max_length,
        dtype=recipe.precision,
        optimizer=recipe.optimizer.kind,
        chunk=recipe.objective.chunk,
        checkpoint_every=recipe.checkpointing,
    )
    table = Table("memory of a full micro-batch", "MiB", box=None)
    table.columns[1].justify = "right"
    for label, size in plan.rows():
        table.add_row(label, f"{size / 2**20:,.0f}")
    return table


def _tokens_a_step(recipe: Recipe) -> int:
    return recipe.micro_batch * recipe.accumulation * recipe.max_length


def _flops(recipe: Recipe, spec: DecoderSpec) -> float:
    return 3.0 * spec.flops_per_token(min(recipe.max_length, spec.context_limit)) * _tokens_a_step(recipe)
