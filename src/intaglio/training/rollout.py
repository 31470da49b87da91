"""The one door from training to the engine: text from the weights as they are."""

from collections.abc import Sequence
from typing import Any

import torch

from intaglio.engine.generate import generate
from intaglio.engine.sampling_params import SamplingParams
from intaglio.models.decoder import Decoder
from intaglio.text.tokenizer import Tokenizer

__all__ = ["answer_prompts", "continue_prompts"]


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
    """Training's own mode and random numbers are left as they were."""
    training, state = model.training, torch.get_rng_state()
    model.eval()
    texts = [""] * len(prompts)
    for piece in generate(model, tokenizer, prompts, params, at_once):
        texts[piece.row] += piece.text
    model.train(training)
    torch.set_rng_state(state)
    return texts
