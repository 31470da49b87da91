"""The same prompts answered by a policy and by the model that its run began with: while it is aligned, and at the end.

Both answer greedily, so that what differs is the weights'. The divergence is measured as in the report of stages (see
`interview.divergences`): KL(policy, start) of an answer, in nats, on drawn answers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from intaglio.adapters.peft_files import load_adapter
from intaglio.checkpoints.load import DTYPES
from intaglio.data.preferences import Prompt, prompt_of
from intaglio.data.readers import Row, read_rows
from intaglio.evaluation.preference import by_score
from intaglio.evaluation.side_by_side import as_lines
from intaglio.models.decoder import Decoder
from intaglio.specs.adapter import LoRASpec
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.batching.data import located, sources_of
from intaglio.training.measuring.comparison import compared
from intaglio.training.measuring.interview import Interview, divergences, interview, shown_prompt
from intaglio.training.measuring.measure_specs import CompareSpec
from intaglio.training.objectives.rl_specs import GRPOSpec, PPOSpec
from intaglio.training.recipe import AdapterFrom, Recipe
from intaglio.training.reference import AdapterOff
from intaglio.training.rl.rewards import Rewards, build_rewards
from intaglio.training.rollout import Drawing
from intaglio.training.start import build_model

__all__ = ["SideBySide"]

Start = Callable[[Decoder], AbstractContextManager[Decoder]]
"""Given the policy, the model that the run began with, for as long as the block runs."""


@dataclass(frozen=True)
class _Asked:
    """What one comparison came to."""

    policy: Interview
    start: Interview
    away: list[float]


class _Writes(Protocol):
    """Where it is told: a run's log."""

    def line(self, **values: Any) -> None: ...

    def say(self, text: str) -> None: ...


class SideBySide:
    """The comparisons of one run.

    Args:
        recipe: the run's, of an objective that aligns a policy.
        tokenizer: the policy's.
        held_out: places of the rows that are not trained on.
    """

    def __init__(self, recipe: Recipe, tokenizer: Tokenizer, held_out: Sequence[str]) -> None:
        self.recipe, self.tokenizer = recipe, tokenizer
        self.spec = recipe.compare or CompareSpec()
        self.prompts = [*_prompts(recipe, held_out, self.spec.rows)]
        self._rewards: Rewards | None = None
        self._specs = [*self.spec.rewards]
        if isinstance(recipe.objective, PPOSpec | GRPOSpec):
            self._specs = [*recipe.objective.rewards, *self._specs]
        self._start: Interview | None = None
        self._last: tuple[int, _Asked] | None = None

    def tell(self, step: int, policy: Decoder, log: _Writes) -> None:
        """Asks both, and writes into the log what they said."""
        if not self.prompts:
            return
        found = self._ask(policy)
        self._last = step, found
        told = self._numbers(found)
        log.line(step=step, **told)
        prompts = [shown_prompt(prompt) for prompt in self.prompts[: self.spec.shown]]
        answers = {"start": found.start.texts, "policy": found.policy.texts}
        for row, prompt in enumerate(prompts):
            log.line(step=step, prompt=prompt, sample=found.policy.texts[row], start_sample=found.start.texts[row])
        log.say(f"step {step}: {self._sentence(told, found.policy.scores)}")
        for line in as_lines(prompts, answers):
            log.say(line)

    def report(self, step: int, policy: Decoder) -> dict[str, Any]:
        """What the policy has become after all steps, in the form of a report of stages (see `stage_pages`).

        Args:
            step: the last one; what was asked then is not asked again.
            policy: as it is.
        """
        if len(self.prompts) < 2:
            return {}
        found = self._last[1] if self._last is not None and self._last[0] == step else self._ask(policy)
        texts = zip(map(shown_prompt, self.prompts), found.start.texts, found.policy.texts, strict=True)
        samples = [
            {"prompt": prompt, "answers": {"start": {"text": before}, "policy": {"text": after}}}
            for prompt, before, after in islice(texts, self.spec.shown)
        ]
        return {
            "prompts": len(self.prompts),
            "temperature": 0,
            "baseline": "start",
            "stages": {
                "start": compared(found.start, found.start, [0.0] * len(self.prompts)),
                "policy": compared(found.policy, found.start, found.away),
            },
            "samples": samples,
        }

    def _ask(self, policy: Decoder) -> _Asked:
        limit, batch = self._limit, self.spec.batch
        how = Drawing(limit, temperature=0, at_once=batch)
        begin = _start_of(self.recipe, self.tokenizer)
        rewards = self._judges()
        if self._start is None:  # its answers do not change
            with begin(policy) as start:
                self._start = interview(start, self.tokenizer, self.prompts, rewards, how)
        mine = interview(policy, self.tokenizer, self.prompts, rewards, how)
        away = divergences(policy, begin, self.tokenizer, self.prompts, limit, batch, self.recipe.seed)
        return _Asked(mine, self._start, away)

    @property
    def _limit(self) -> int:
        objective = self.recipe.objective
        return getattr(objective, "max_completion_length", self.recipe.sample_tokens)

    def _judges(self) -> Rewards | None:
        """Built when they are first needed."""
        if self._rewards is None and self._specs:
            recipe = self.recipe
            self._rewards = build_rewards(self._specs, self.tokenizer, recipe.precision, recipe.device)
        return self._rewards

    def _numbers(self, found: _Asked) -> dict[str, float]:
        told = {
            "samples/kl": float(np.mean(found.away)),
            "samples/length": float(np.mean(found.policy.lengths)),
            "samples/start_length": float(np.mean(found.start.lengths)),
            "samples/ended": float(np.mean(found.policy.ended)),
        }
        for name, scores in found.policy.scores.items():
            before = found.start.scores[name]
            told |= _means({f"samples/{name}": scores, f"samples/start_{name}": before})
            told[f"samples/{name}_win_rate"] = float(by_score(scores, before).points.mean())
        return told

    def _sentence(self, told: Mapping[str, float], judges: Iterable[str]) -> str:
        words = [f"KL {told['samples/kl']:.2f}", f"{told['samples/length']:.1f} tokens"]
        for name in judges:
            rate = told[f"samples/{name}_win_rate"]
            words.append(f"{name} {told.get(f'samples/{name}', float('nan')):.3f}, {rate:.0%} won")
        return f"on {len(self.prompts)} held-out prompts: " + ", ".join(words)


def _means(columns: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Of what could be judged."""
    finite = {name: [value for value in values if np.isfinite(value)] for name, values in columns.items()}
    return {name: float(np.mean(values)) for name, values in finite.items() if values}


def _prompts(recipe: Recipe, held_out: Sequence[str], rows: int) -> Iterator[Prompt]:
    """Those that are named, the recipe's own, or those of its held-out rows, each once."""
    kept: Iterable[Row]
    if recipe.compare is not None and recipe.compare.prompts is not None:
        kept = read_rows(located(recipe.compare.prompts))
    elif recipe.prompts:
        yield from (Prompt(f"prompts[{row}]", text) for row, text in enumerate(recipe.prompts))
        return
    else:
        outside = set(held_out)
        sources = (read_rows(located(source.path)) for source in sources_of(recipe))
        kept = (row for rows_of_one in sources for row in rows_of_one if row.where in outside)
    unique = {repr(prompt.prompt): prompt for prompt in map(prompt_of, islice(kept, 50 * rows))}
    yield from islice(unique.values(), rows)


def _start_of(recipe: Recipe, tokenizer: Tokenizer) -> Start:
    """Without a second model where a new adapter can be switched off; else read again, and held while it is needed."""
    if isinstance(recipe.adapter, LoRASpec):
        return AdapterOff().of
    start = build_model(recipe, tokenizer)
    if isinstance(recipe.adapter, AdapterFrom):
        load_adapter(start, Path(recipe.adapter.path))
    start.to(DTYPES[recipe.precision]).eval()

    return lambda policy: nullcontext(start)
