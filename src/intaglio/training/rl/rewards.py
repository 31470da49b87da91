"""What answers are worth: functions that verify, functions of the user's own, reward models; weighted and added up.

Legend: D answers.
"""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from intaglio.data.examples import MaskPolicy
from intaglio.data.preference_encoding import PromptExample, encode_judged
from intaglio.data.preferences import Judged, Said
from intaglio.evaluation.verifiers import Verifier, matches, verifier_of
from intaglio.models.heads import SequenceClassifier
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.objectives.rl_specs import RewardSpec
from intaglio.training.rl.scorers import load_scorer
from intaglio.training.rollout import Answer, read_scores

__all__ = ["FunctionReward", "ModelReward", "Reward", "Rewards", "build_rewards", "function_of", "same_ids"]


class Reward(Protocol):
    """A number for an answer."""

    name: str

    def __call__(self, prompts: Sequence[PromptExample], answers: Sequence[Answer]) -> list[float]:
        """One for each answer to the prompt of the same number; NaN where there is none."""


class FunctionReward:
    """A Python function; see `evaluation.verifiers` for its shape.

    Args:
        name: in the log.
        function: called with the keywords that it takes, all of them if it takes any.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self._verifier = name, Verifier(name, function)

    def __call__(self, prompts: Sequence[PromptExample], answers: Sequence[Answer]) -> list[float]:
        """See `Reward`.

        Raises:
            UserError: see `Verifier`.
        """
        asked, texts = [_plain(prompt.source) for prompt in prompts], [answer.text for answer in answers]
        return self._verifier(asked, texts, [prompt.columns for prompt in prompts])


def _plain(source: Said) -> str | list[dict[str, Any]]:
    return source if isinstance(source, str) else [dict(message) for message in source]


class ModelReward:
    """A reward model, read at the last token of prompt and answer.

    Where it has the policy's tokenizer it reads the very ids that were made; else prompt and answer are rendered again
    by its own, which ends every answer, also one that was cut off.

    Args:
        name: in the log.
        model: with one score.
        tokenizer: its own.
        same: whether ids of the policy mean the same to it.
    """

    def __init__(self, name: str, model: SequenceClassifier, tokenizer: Tokenizer, *, same: bool) -> None:
        self.name, self._model, self._tokenizer, self._same = name, model, tokenizer, same

    def __call__(self, prompts: Sequence[PromptExample], answers: Sequence[Answer]) -> list[float]:
        """See `Reward`."""
        return read_scores(self._model, [self._ids(*pair) for pair in zip(prompts, answers, strict=True)])

    def _ids(self, prompt: PromptExample, answer: Answer) -> list[int]:
        if self._same:
            return [*prompt.prompt.tolist(), *answer.ids]
        said: Said = answer.text
        if not isinstance(prompt.source, str):
            said = ({"role": "assistant", "content": answer.text},)
        judged = Judged(prompt.where, prompt.source, said, label=True)
        example = encode_judged(judged, self._tokenizer, MaskPolicy())
        return [*example.prompt.tolist(), *example.completion.tolist()]


def same_ids(policys: Tokenizer, own: Tokenizer) -> bool:
    """Whether ids of the policy mean the same to a model with a tokenizer of its own.

    That may have tokens more: a reward model is written with a pad token that its policy may not have.
    """
    ours, theirs = (json.loads(tokenizer.backend.to_str()) for tokenizer in (policys, own))
    added, more = ours.pop("added_tokens"), theirs.pop("added_tokens")
    known = all(token in more for token in added)
    return known and ours == theirs and policys.chat_templates == own.chat_templates


class Rewards:
    """Several rewards as one.

    Args:
        rewards: each.
        weights: of each.
    """

    def __init__(self, rewards: Sequence[Reward], weights: Sequence[float]) -> None:
        self.rewards, self.weights = rewards, weights

    def __call__(self, prompts: Sequence[PromptExample], answers: Sequence[Answer]) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted sum (D,), and each by its name (D,); NaN where none of them could say anything."""
        each = {one.name: torch.tensor(one(prompts, answers), dtype=torch.float32) for one in self.rewards}
        rows = torch.stack([*each.values()])  # (rewards, D)
        total = (rows * torch.tensor(self.weights)[:, None]).nansum(dim=0)
        return total.masked_fill(rows.isnan().all(dim=0), math.nan), each


def build_rewards(
    specs: Sequence[RewardSpec],
    tokenizer: Tokenizer,
    dtype: str,
    device: str,
) -> Rewards:
    """The rewards of a recipe.

    Args:
        specs: of each.
        tokenizer: the policy's.
        dtype, device: of reward models.

    Raises:
        UserError: no such function, file or model, or a model that is no reward model.
    """
    rewards = [_build(spec, tokenizer, dtype, device) for spec in specs]
    names = [reward.name for reward in rewards]
    for number, reward in enumerate(rewards):
        if names.count(reward.name) > 1:
            reward.name = f"{reward.name}-{number + 1}"
    return Rewards(rewards, [spec.weight for spec in specs])


def _build(spec: RewardSpec, tokenizer: Tokenizer, dtype: str, device: str) -> Reward:
    if spec.model is not None:
        return _model(spec.model, tokenizer, dtype, device)
    return function_of(spec)


def function_of(spec: RewardSpec) -> FunctionReward:
    """The reward of a spec that names no model.

    Raises:
        UserError: no such function or file.
    """
    if spec.pattern is not None:
        return FunctionReward("pattern", matches(spec.pattern))
    assert spec.function is not None
    verifier = verifier_of(spec.function)
    return FunctionReward(verifier.name, verifier.function)


def _model(name: str, tokenizer: Tokenizer, dtype: str, device: str) -> ModelReward:
    model, own = load_scorer(name, dtype, device, "rewards")
    model.requires_grad_(requires_grad=False)
    return ModelReward(_title(Path(name).resolve()), model, own, same=same_ids(tokenizer, own))


def _title(path: Path) -> str:
    """The name of a directory; of RUN/model that of the run, since all runs have one of that name."""
    return path.parent.name if path.name in ("model", "adapter", "value") else path.name
