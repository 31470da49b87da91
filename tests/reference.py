"""What transformers makes of a directory of ours: the judge of the real models."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

__all__ = ["Reference"]

logging.set_verbosity_error()
logging.disable_progress_bar()


class Reference:
    """A model and its tokenizer as transformers opens them, in fp32.

    Args:
        directory: a checkpoint directory.
    """

    def __init__(self, directory: Path) -> None:
        torch.set_num_threads(1)
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    @torch.no_grad()
    def logits(self, ids: Sequence[int]) -> Tensor:
        """(T, V)"""
        logits: Tensor = self.model(torch.tensor([ids])).logits[0]
        return logits

    def continued(self, ids: Sequence[int], new_tokens: int) -> list[int]:
        """The likeliest tokens, one after the other."""
        prompt = torch.tensor([ids])
        options = {"do_sample": False, "repetition_penalty": 1.0, "max_new_tokens": new_tokens, "pad_token_id": 0}
        made = self.model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
        return made[0, len(ids) :].tolist()

    def rendered(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> tuple[str, list[int]]:
        """A conversation as text and as ids."""
        render = self.tokenizer.apply_chat_template
        return render(messages, tokenize=False, **options), render(messages, **options)["input_ids"]
