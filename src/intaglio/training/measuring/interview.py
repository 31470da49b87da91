"""What a model answers to prompts, how that is judged, and how far its answers are from what another would say.

Legend: D prompts, n tokens of a batch of answers, V vocabulary, R tokens of a block.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from intaglio.data.examples import MaskPolicy
from intaglio.data.preference_encoding import PromptExample, encode_prompt
from intaglio.data.preferences import Prompt
from intaglio.data.turns import text_of
from intaglio.models.decoder import Decoder
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.objectives.branches import fork_states
from intaglio.training.rl.rewards import Rewards
from intaglio.training.rl.rollouts import RolloutBatch, batch_of, flat_rollout
from intaglio.training.rollout import Answer, Drawing, drawn_answers

__all__ = ["Interview", "Reference", "along", "divergences", "interview", "shown_prompt"]

Reference = Callable[[Decoder], AbstractContextManager[Decoder]]
"""Given a model, the one that it is compared with, for as long as the block runs: the two may share weights."""

_BLOCK = 1 << 22  # logits of one model at a time


@dataclass(frozen=True)
class Interview:
    """A model's answers to prompts.

    Attributes:
        answers: (D,).
        scores: by the name of what judged them, (D,) each; NaN where it could not.
    """

    answers: Sequence[Answer]
    scores: Mapping[str, list[float]] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        """(D,)"""
        return [answer.text for answer in self.answers]

    @property
    def lengths(self) -> list[int]:
        """(D,) tokens, the one that ended an answer included."""
        return [len(answer.ids) for answer in self.answers]

    @property
    def ended(self) -> list[bool]:
        """(D,) whether it came to an end by itself."""
        return [answer.ended for answer in self.answers]


def interview(
    model: Any,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    rewards: Rewards | None,
    how: Drawing,
    seed: int = 0,
) -> Interview:
    """The model's answers, judged.

    Args:
        model: a decoder.
        tokenizer: its own.
        prompts: what is asked.
        rewards: what judges; None: nothing does.
        how: answers are made; greedily at a temperature of 0.
        seed: of the answers, else.

    Raises:
        UserError: a prompt that cannot be rendered, or a reward that fails.
    """
    asked = [encode_prompt(prompt, tokenizer, MaskPolicy()) for prompt in prompts]
    answers = _drawn(model, tokenizer, asked, how, seed)
    scores = {} if rewards is None else {name: found.tolist() for name, found in rewards(asked, answers)[1].items()}
    return Interview(answers, scores)


def divergences(
    model: Decoder,
    reference: Reference,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    max_tokens: int,
    batch: int,
    seed: int = 0,
) -> list[float]:
    """KL(model, reference) of the answer to each prompt, in nats: (D,)

    Of one drawn answer each the divergence at every token, over the whole vocabulary, summed: its mean over answers is
    the divergence of the two distributions over answers (of at most `max_tokens`), without bias, and varies less than
    the sum of log-ratios of the drawn tokens.

    Args:
        model: draws the answers, at temperature 1; row i with `seed` + i.
        reference: of the same vocabulary.
        tokenizer: of both.
        prompts: what is asked.
        max_tokens: of an answer.
        batch: answers that are made and read together.
        seed: of the answers.
    """
    asked = [encode_prompt(prompt, tokenizer, MaskPolicy()) for prompt in prompts]
    drawn = [answer.ids for answer in _drawn(model, tokenizer, asked, Drawing(max_tokens, at_once=batch), seed)]
    return along(model, reference, [prompt.prompt.tolist() for prompt in asked], drawn, batch)


@torch.no_grad()
def along(
    model: Decoder,
    reference: Reference,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    batch: int = 64,
) -> list[float]:
    """KL(model, reference) at every token of given answers, over the whole vocabulary, summed by answer: (D,) nats."""
    rollout = flat_rollout(prompts, answers, [""] * len(prompts))
    device, sums = model.embed_tokens.weight.device, []
    training = model.training
    model.eval()
    for start in range(0, len(rollout), batch):
        part = batch_of(rollout, range(start, min(start + batch, len(rollout)))).to(device)
        sums += [float(some.sum()) for some in _by_token(model, reference, part).split(part.lengths)]
    model.train(training)
    return sums


def _drawn(
    model: Any, tokenizer: Tokenizer, asked: Sequence[PromptExample], how: Drawing, seed: int = 0
) -> list[Answer]:
    """One answer to each."""
    ids = [prompt.prompt.tolist() for prompt in asked]
    return [row[0] for row in drawn_answers(model, tokenizer, ids, how, seed=seed)]


def _hidden(model: Decoder, batch: RolloutBatch) -> Tensor:
    """(n, E): what the model predicts each token of the answers from."""
    return fork_states(model, batch)[batch.places]


def _by_token(model: Decoder, reference: Reference, batch: RolloutBatch) -> Tensor:
    """(n,) sum over the vocabulary of p (log p - log q), a block of tokens at a time."""
    hidden = _hidden(model, batch)
    with reference(model) as other:
        compared = _hidden(other, batch)
    found = [hidden.new_zeros(0, dtype=torch.float32)]
    for rows in _blocks(len(hidden), model.spec.vocab_size):
        ours = model.logits(hidden[rows]).float().log_softmax(dim=-1)  # (R, V)
        with reference(model) as other:
            theirs = other.logits(compared[rows]).float().log_softmax(dim=-1)
        found.append((ours.exp() * (ours - theirs)).sum(dim=-1))
    return torch.cat(found)


def _blocks(count: int, vocab_size: int) -> Iterator[slice]:
    size = max(_BLOCK // vocab_size, 1)
    return (slice(start, start + size) for start in range(0, count, size))


def shown_prompt(prompt: Prompt) -> str:
    """The prompt as people read it: a text, or who said what."""
    if isinstance(prompt.prompt, str):
        return prompt.prompt
    return "\n".join(f"{message['role']}: {text_of(message)}" for message in prompt.prompt)
