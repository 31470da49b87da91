"""`--dry-run`: the recipe as resolved, what the model costs, and two samples with their targets marked."""

from collections.abc import Iterator
from itertools import islice

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from intaglio.data.examples import Counts, Example, MaskPolicy, encode_sample
from intaglio.data.readers import read_rows
from intaglio.lineage.units import short_bytes
from intaglio.planning.job_plan import JobPlan
from intaglio.specs import DecoderSpec, ModelSpec
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.batching.data import located, samples_of, sources_of
from intaglio.training.batching.labelled import encode_labelled
from intaglio.training.batching.preferences import judged_examples, pair_examples
from intaglio.training.batching.prompts import prompt_rows
from intaglio.training.batching.tagged import encode_tagged
from intaglio.training.memory.planned import helpful, largest, memory_plan, what_helps
from intaglio.training.objectives.specs import ClassifierSpec, GRPOSpec, KTOSpec, PPOSpec, PreferenceSpec, TaggerSpec
from intaglio.training.recipe import Recipe
from intaglio.training.start import build_spec, build_tokenizer
from intaglio.training.stepping.flops import step_flops

__all__ = ["marked", "preview", "show_costs"]

_SAMPLES = 2


def preview(recipe: Recipe, console: Console | None = None) -> None:
    """Prints what a run of `recipe` would be; reads its data, builds no weights.

    Raises:
        UserError: what the recipe names is missing or does not fit.
    """
    console = console or Console()
    console.print(yaml.safe_dump(recipe.plain(), sort_keys=False, allow_unicode=True), markup=False, highlight=False)
    show_costs(recipe, console)


def show_costs(recipe: Recipe, console: Console) -> None:
    """All of it but the recipe.

    Raises:
        UserError: see `preview`.
    """
    tokenizer = build_tokenizer(recipe)
    spec = build_spec(recipe, tokenizer)
    console.print(f"{spec.num_parameters():,} parameters, {spec.num_active_parameters():,} active", highlight=False)
    console.print(
        f"{_tokens_a_step(recipe):,} tokens a step at most, {_flops(recipe, spec):.3g} FLOPs", highlight=False
    )
    if isinstance(spec, DecoderSpec):
        plan = memory_plan(recipe, spec)
        console.print(_memory(plan))
        console.print(_less(recipe, plan), highlight=False, soft_wrap=True)
    for example, label in islice(_examples(recipe, tokenizer), _SAMPLES):
        targets = int(example.supervised.sum())
        words = f"{len(example.ids)} tokens, {targets} of them targets"
        console.print(f"\n{example.where}: {words}{label}", highlight=False, markup=False, soft_wrap=True)
        console.print(marked(example, tokenizer))


def _examples(recipe: Recipe, tokenizer: Tokenizer) -> Iterator[tuple[Example, str]]:
    """The first source's examples, and what is said of each beside its tokens."""
    source, objective = sources_of(recipe)[0], recipe.objective
    limits = Counts(), recipe.max_length, recipe.over_long
    match objective:
        case ClassifierSpec(delimiter=delimiter):
            rows = read_rows(located(source.path))
            pairs = encode_labelled(rows, tokenizer, *limits, delimiter)
            return ((example, f"; label: {label}") for example, label in pairs)
        case TaggerSpec():
            tagged = encode_tagged(read_rows(located(source.path)), tokenizer, *limits)
            return ((example, f"; tags: {' '.join(tags)}") for example, tags in tagged)
        case KTOSpec():
            judged = judged_examples(read_rows(located(source.path)), tokenizer, *limits)
            return ((one, "; wanted" if one.desirable else "; not wanted") for one in judged)
        case PreferenceSpec():
            compared = pair_examples(read_rows(located(source.path)), tokenizer, *limits)
            return ((pair, f"; chosen {pair.fork[1]} tokens, rejected {pair.fork[2]}") for pair in compared)
        case PPOSpec() | GRPOSpec():
            longest = recipe.max_length - objective.max_completion_length
            asked = prompt_rows(read_rows(located(source.path)), tokenizer, Counts(), longest)
            return ((example, "; a prompt to be answered") for example, _ in asked)
    policy = MaskPolicy(supervise=recipe.supervise)
    return ((encode_sample(sample, tokenizer, policy), "") for sample in samples_of(source))


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


def _memory(plan: JobPlan) -> Table:
    """The most a step takes at one time, by component: on one rank, of a pipeline's the one that needs most."""
    table = Table("memory of a full micro-batch", "MiB", box=None)
    table.columns[1].justify = "right"
    for label, size in {**plan.worst.peak.parts, "peak": plan.peak_bytes}.items():
        table.add_row(label, f"{size / 2**20:,.0f}")
    return table


def _less(recipe: Recipe, plan: JobPlan) -> str:
    """What takes most, and what would make it less."""
    name, size = largest(plan)
    found = what_helps(helpful(recipe, plan))
    return f"most of it is {name} ({short_bytes(size)}){'; ' if found else ''}{found}"


def _tokens_a_step(recipe: Recipe) -> int:
    ranks = recipe.parallel.dp if recipe.parallel else 1
    return ranks * recipe.micro_batch * recipe.accumulation * _tokens_a_row(recipe)


def _tokens_a_row(recipe: Recipe) -> int:
    """Of comparisons a row holds two answers."""
    return recipe.max_length * (2 if isinstance(recipe.objective, PreferenceSpec) else 1)


def _flops(recipe: Recipe, spec: ModelSpec) -> float:
    """With every token a target."""
    frozen = recipe.adapter is not None
    return float(sum(step_flops(spec, recipe.max_length, frozen)) * _tokens_a_step(recipe))
