"""What the stages came to: all that write text answer the same held-out prompts, and are compared with one of them.

OUT/
    report.json     every number below, with 95 % intervals over prompts
    report.md       the same as tables, and answers side by side
    report.png      what judges the answers, against the divergence from the baseline
    answers.jsonl   every answer

- Answers are greedy, unless the report has a temperature. The reward is the reward stage's; a score is of something
  that the reward knows nothing of: where the one rises and the other does not, the reward was exploited and not met.
- The divergence is KL(stage, baseline) of an answer, in nats (see `interview.divergences`).
- A win rate is the share of prompts whose answer has the higher number, ties counting half.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from intaglio.adapters.merge import load_merged
from intaglio.adapters.peft_files import config_of_adapter
from intaglio.checkpoints.classifiers import is_classifier
from intaglio.checkpoints.models import load_model, load_tokenizer
from intaglio.data.preferences import Prompt, prompt_of
from intaglio.data.readers import read_rows
from intaglio.errors import UserError
from intaglio.files import read_json, write_json, write_json_lines
from intaglio.specs import DecoderSpec
from intaglio.specs.families import read_directory
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.batching.data import located
from intaglio.training.measuring.comparison import compared
from intaglio.training.measuring.interview import Interview, divergences, interview, shown_prompt
from intaglio.training.objectives.rl_specs import RewardSpec
from intaglio.training.recipe import Recipe
from intaglio.training.rl.rewards import Rewards, build_rewards, same_ids
from intaglio.training.rollout import Drawing
from intaglio.training.stages.pages import draw_report, write_page
from intaglio.training.stages.plan import ReportSpec, Stages

__all__ = ["make_report"]

Say = Callable[[str], None]
_FILE: Final = "report.json"
_REWARD: Final = "reward"


@dataclass(frozen=True)
class _Speaker:
    """A stage that can be asked.

    Attributes:
        found: its answers.
        away: nats from the baseline, of each prompt's answer; None where the two have not the same vocabulary.
    """

    found: Interview
    away: list[float] | None


def make_report(
    stages: Stages, out: Path, ended: Mapping[str, Mapping[str, Any]], say: Say = lambda line: None
) -> dict[str, Any]:
    """Asks and compares, and writes the files above; what stands there of the same stages is read and not made again.

    Args:
        stages: with a `report`.
        out: their folder.
        ended: name -> what is known of the stage's end, `weights` among it.
        say: told how far it is.

    Raises:
        UserError: the baseline or the reward's stage is none, the prompts cannot be read, or a score fails.
    """
    assert stages.report is not None
    made_of = {"report": stages.report.plain(), **{name: end["weights"] for name, end in ended.items()}}
    known: dict[str, Any] = read_json(out / _FILE) if (out / _FILE).exists() else {}
    if known.get("made_of") != made_of:
        known = {"made_of": made_of, **_asked(stages.report, stages.recipes(out), out, say)}
        known["seconds"] = {name: end["seconds"] for name, end in ended.items()}
        write_json(out / _FILE, known)
    draw_report(known, out / "report.png", say)
    write_page(known, out / "report.md")
    return known


def _asked(spec: ReportSpec, recipes: Mapping[str, Recipe], out: Path, say: Say) -> dict[str, Any]:
    rows = read_rows(located(spec.prompts, say))
    prompts = [prompt_of(row) for row in islice(rows, spec.rows)]
    if len(prompts) < 2:
        raise UserError("holds fewer than two prompts", where=f"report: prompts: {spec.prompts}")
    speakers = _speakers(spec, recipes, out, prompts, say)
    base = speakers[spec.baseline].found
    shown = [shown_prompt(prompt) for prompt in prompts]
    lines = [
        {"prompt": text, "answers": {name: _said(one.found, row) for name, one in speakers.items()}}
        for row, text in enumerate(shown)
    ]
    write_json_lines(out / "answers.jsonl", lines)
    return {
        "prompts": len(prompts),
        "temperature": spec.temperature,
        "baseline": spec.baseline,
        "reward": spec.reward,
        "stages": {name: compared(one.found, base, one.away) for name, one in speakers.items()},
        "samples": lines[: spec.samples],
    }


def _speakers(
    spec: ReportSpec, recipes: Mapping[str, Recipe], out: Path, prompts: list[Prompt], say: Say
) -> dict[str, _Speaker]:
    """Every stage that writes text, asked; in their order."""
    names = [name for name, recipe in recipes.items() if _writes(recipe, out / name)]
    if spec.baseline not in names:
        what = f"the stage {spec.baseline} writes no text, so that nothing can be compared with it"
        raise UserError(what, where="report: baseline", mend=f"take one of {', '.join(names)}")
    base, base_tokenizer = _made(recipes[spec.baseline], out / spec.baseline)
    speakers: dict[str, _Speaker] = {}
    for name in names:
        say(f"asking {name}: {len(prompts)} prompts")
        model, tokenizer = _made(recipes[name], out / name)
        rewards = _rewards(spec, recipes, out, tokenizer)
        how = Drawing(spec.max_tokens, spec.temperature, at_once=spec.batch)
        found = interview(model, tokenizer, prompts, rewards, how, spec.seed)
        comparable = same_ids(tokenizer, base_tokenizer) and model.spec.vocab_size == base.spec.vocab_size
        away = None
        if comparable:
            away = divergences(
                model, lambda policy: nullcontext(base), tokenizer, prompts, spec.max_tokens, spec.batch, spec.seed
            )
        speakers[name] = _Speaker(found, away)
    return speakers


def _result(recipe: Recipe, run: Path) -> Path:
    return run / ("adapter" if recipe.adapter else "model")


def _writes(recipe: Recipe, run: Path) -> bool:
    """Whether the stage made a decoder without a head of another kind."""
    result = _result(recipe, run)
    if recipe.adapter:
        return config_of_adapter(result).get("task_type") != "SEQ_CLS"
    return not is_classifier(result) and isinstance(read_directory(result), DecoderSpec)


def _made(recipe: Recipe, run: Path) -> tuple[Any, Tokenizer]:
    """The model that the stage made, adapters merged, and its tokenizer."""
    result = _result(recipe, run)
    if recipe.adapter:
        assert recipe.model is not None
        model, _ = load_merged(recipe.model, result, dtype="float32", device=recipe.device)
    else:
        model = load_model(result, dtype="float32", device=recipe.device)
    return model, load_tokenizer(result)


def _rewards(spec: ReportSpec, recipes: Mapping[str, Recipe], out: Path, tokenizer: Tokenizer) -> Rewards | None:
    """What judges the answers of a model with this tokenizer."""
    specs, device = [*spec.scores], recipes[spec.baseline].device
    if spec.reward is not None:
        specs.insert(0, RewardSpec(model=str(_result(recipes[spec.reward], out / spec.reward))))
    if not specs:
        return None
    rewards = build_rewards(specs, tokenizer, "float32", device)
    if spec.reward is not None:
        rewards.rewards[0].name = _REWARD
    return rewards


def _said(found: Interview, row: int) -> dict[str, Any]:
    return {"text": found.texts[row], **{name: _finite(scores[row]) for name, scores in found.scores.items()}}


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
