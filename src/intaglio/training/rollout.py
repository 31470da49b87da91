"""The one door from training to the engine: text from the weights as they are.

Nothing of the engine outlives a call, so that no key or value of older weights can be found by newer ones.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from intaglio.adapters.attach import adapter_specs
from intaglio.engine.generate import generate
from intaglio.engine.interface import EngineConfig
from intaglio.engine.llm import LLM
from intaglio.engine.packed import can_pack, pack
from intaglio.engine.pooling import score
from intaglio.engine.sampling_params import SamplingParams
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier
from intaglio.models.sharing import sharing
from intaglio.parts.nf4 import NF4Linear
from intaglio.text.tokenizer import Tokenizer

__all__ = [
    "Answer",
    "Drawing",
    "answer_prompts",
    "answering",
    "continue_prompts",
    "drawn_answers",
    "laid_out",
    "read_scores",
]


def continue_prompts(
    model: Any,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    max_tokens: int,
    seed: int,
    temperature: float = 0.8,
    min_p: float = 0.0,
) -> list[str]:
    """Continues each prompt with the current weights, or answers it where the model writes a target.

    Row i draws from `seed` + i, so equal prompts differ.
    """
    params = [
        SamplingParams(temperature=temperature, min_p=min_p, max_tokens=max_tokens, seed=seed + row)
        for row in range(len(prompts))
    ]
    return _generate(model, tokenizer, tokenizer.encode_batch(prompts), params, len(prompts))


def answer_prompts(
    model: Any, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]], max_tokens: int, batch: int
) -> list[str]:
    """Greedy continuations of prompts as ids, `batch` at a time."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    if isinstance(model, Decoder):  # whoever ends makes room for the next
        return _generate(model, tokenizer, prompts, [params] * len(prompts), batch)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # those of like length together
    texts = [""] * len(prompts)
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        answers = _generate(model, tokenizer, [prompts[i] for i in chosen], [params] * len(chosen), batch)
        for i, text in zip(chosen, answers, strict=True):
            texts[i] = text
    return texts


def _generate(
    model: Any,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    at_once: int,
) -> list[str]:
    texts = [""] * len(prompts)
    with _undisturbed(model):
        for piece in generate(model, tokenizer, prompts, params, at_once):
            texts[piece.row] += piece.text
    return texts


@dataclass(frozen=True)
class Answer:
    """What the engine made of one prompt.

    Attributes:
        ids: all tokens, the one that ended it included.
        log_probs: of each, under the model itself, whatever the temperature was.
        text: without special tokens, cut before a stop text.
        ended: by a stop token or text of whatever kind, and not because the length ran out.
    """

    ids: list[int]
    log_probs: list[float]
    text: str
    ended: bool


@dataclass(frozen=True)
class Drawing:
    """How answers are drawn.

    Attributes:
        max_tokens: of an answer.
        temperature: divides the logits; 0 takes the likeliest token.
        stop: texts that end an answer, beside the tokenizer's EOS.
        stop_token_ids: tokens that do.
        at_once: answers that are made together at most.
    """

    max_tokens: int
    temperature: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    at_once: int = 256


def drawn_answers(
    model: Any, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]], how: Drawing, group: int = 1, seed: int = 0
) -> list[list[Answer]]:
    """For each prompt a group of answers, from the weights as they are.

    Args:
        model: a decoder, adapters and all; it trains on afterwards if it did before.
        tokenizer: for EOS ids, stop texts and text.
        prompts: ids, one list a prompt.
        how: see `Drawing`.
        group: answers to each prompt, which is read once for all of them.
        seed: prompt i draws from `seed` + i, and each of its answers for itself.

    Raises:
        UserError: see `generate`.
    """
    params = [
        SamplingParams(
            n=group,
            temperature=how.temperature,
            max_tokens=how.max_tokens,
            stop=how.stop,
            stop_token_ids=how.stop_token_ids,
            seed=seed + row,
        )
        for row in range(len(prompts))
    ]
    found: list[list[_Growing]] = [[_Growing() for _ in range(group)] for _ in prompts]
    together = min(how.at_once, len(prompts) * group)
    with _undisturbed(model):
        for piece in generate(laid_out(model, together), tokenizer, prompts, params, how.at_once):
            found[piece.row][piece.choice].take(piece.token_id, piece.log_prob, piece.text, piece.finish_reason)
    return [[one.answer() for one in row] for row in found]


@contextmanager
def answering(model: Any, tokenizer: Tokenizer, together: int) -> Iterator[LLM]:
    """An engine over the weights as they are, for as long as the block runs.

    Args:
        model: trains on afterwards if it did before.
        tokenizer: the run's.
        together: answers that are made at once.
    """
    with _undisturbed(model):
        yield LLM.around(laid_out(model, together), tokenizer, EngineConfig(max_sequences=together))


class _Growing:
    def __init__(self) -> None:
        self.ids: list[int] = []
        self.log_probs: list[float] = []
        self.texts: list[str] = []
        self.reason: str | None = None

    def take(self, token: int, log_prob: float, text: str, reason: str | None) -> None:
        self.ids.append(token)
        self.log_probs.append(log_prob)
        self.texts.append(text)
        self.reason = reason

    def answer(self) -> Answer:
        return Answer(self.ids, self.log_probs, "".join(self.texts), self.reason == "stop")


def laid_out(model: Any, together: int = 1) -> Any:
    """The model as it generates so many answers together fastest: packed where that pays, else itself.

    What is packed (see `engine.packed`) is a second set of matrices, made of the weights as they are now; embeddings
    and norms are shared. A model of 4 bits stays as it is, which is what the 4 bits are for, and so does one with
    adapters: merged, an update is rounded to the weights' bf16, and GRPO of SmolLM2 collapsed on answers drawn so.
    """
    if not isinstance(model, Decoder) or not can_pack(model) or adapter_specs(model):
        return model
    if any(isinstance(module, NF4Linear) for module in model.modules()):
        return model
    return pack(sharing(model), rows=together)


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Training's own mode and random numbers are left as they were."""
    training, state = model.training, torch.get_rng_state()
    model.eval()
    try:
        yield
    finally:
        model.train(training)
        torch.set_rng_state(state)


def read_scores(model: SequenceClassifier, texts: Sequence[Sequence[int]], budget: int = 4096) -> list[float]:
    """What a reward model says at the last token of each text, given as ids; `budget` tokens in one forward."""
    scores: list[float] = score(model, texts, budget)[:, 0].tolist()
    return scores
