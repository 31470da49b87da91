"""The one door from training to the engine: text from the weights as they are."""

from collections.abc import Sequence

import torch

from intaglio.engine.generate import generate
from intaglio.engine.sampling_params import SamplingParams
from intaglio.models.decoder import Decoder
from intaglio.text.tokenizer import Tokenizer

__all__ = ["continue_prompts"]


def continue_prompts(
    model: Decoder, tokenizer: Tokenizer, prompts: Sequence[str], max_tokens: int, seed: int, temperature: float = 0.8
) -> list[str]:
    """Continues each prompt with the current weights; training's own random numbers are left as they were."""
    training, state = model.training, torch.get_rng_state()
    model.eval()
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
    texts = [""] * len(prompts)
    for piece in generate(model, tokenizer, tokenizer.encode_batch(prompts), [params] * len(prompts)):
        texts[piece.row] += piece.text
    model.train(training)
    torch.set_rng_state(state)
    return texts
