"""Has a model learned to answer? Complete answers are put before it, and what it expects behind them is read off.

An instruct model expects the token that ends a turn behind a complete answer. A base model, which has seen that token
seldom or never, expects more text, whatever template stands around it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from intaglio.text.chat import render_chat
from intaglio.text.jinja import ChatTemplate
from intaglio.text.tokenizer import Tokenizer

__all__ = ["Probe", "probe_turn_ends"]

EXCHANGES: Final = (
    ("What is the capital of France?", "The capital of France is Paris."),
    ("How many days are in a week?", "There are seven days in a week."),
    ("What colour is the sky on a clear day?", "The sky is blue on a clear day."),
    ("Translate 'good morning' into Spanish.", "Buenos días."),
    ("What is 2 + 2?", "2 + 2 equals 4."),
    ("Name a fruit that is yellow.", "A banana is a yellow fruit."),
    ("Who wrote Romeo and Juliet?", "William Shakespeare wrote Romeo and Juliet."),
    ("Is water wet?", "Yes, water is wet."),
)
"""Questions with answers to which nothing needs to be added."""


@dataclass(frozen=True)
class Probe:
    """What a model expects behind complete answers.

    Attributes:
        asked: answers put before it.
        ended: those behind which the end of the turn was the likeliest token.
        logprob: the end's mean log-probability, in nats.
        uniform: what chance would give: -ln V.
    """

    asked: int
    ended: int
    logprob: float
    uniform: float

    @property
    def kind(self) -> str:
        """instruct where the end is nearer to certainty than to chance, else base."""
        return "instruct" if self.logprob > self.uniform / 2 else "base"


@torch.inference_mode()
def probe_turn_ends(
    model: Any,
    tokenizer: Tokenizer,
    template: ChatTemplate | None = None,
    exchanges: Sequence[tuple[str, str]] = EXCHANGES,
) -> Probe:
    """Reads off the end of the turn behind each answer.

    Args:
        model: a decoder or a recurrent model: ids (1, T) to logits (1, T, V).
        tokenizer: the model's.
        template: instead of the tokenizer's own.
        exchanges: questions and complete answers.

    Raises:
        UserError: there is no template, or what the assistant wrote cannot be told.
    """
    device = next(model.parameters()).device
    logprobs, ended = [], 0
    for question, answer in exchanges:
        chat = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        rendered = render_chat(tokenizer, chat, template=template)
        end = max(i for i, written in enumerate(rendered.assistant_mask) if written)
        scores = model(torch.tensor([rendered.ids[:end]], device=device))[0, -1].float().log_softmax(-1)  # (V,)
        logprobs.append(float(scores[rendered.ids[end]]))
        ended += int(scores.argmax()) == rendered.ids[end]
    uniform = -float(torch.log(torch.tensor(float(model.spec.vocab_size))))
    return Probe(len(logprobs), ended, sum(logprobs) / len(logprobs), uniform)
