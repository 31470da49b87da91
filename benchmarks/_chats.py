"""Ragged chats: what the fine-tuning benchmarks train on, the same for every side."""

import random

from intaglio.data.examples import Example, MaskPolicy, encode_sample
from intaglio.data.formats import Sample
from intaglio.text.messages import Message
from intaglio.text.tokenizer import Tokenizer

__all__ = ["conversations", "encoded"]

_WORDS = "the model learns to read and write short answers about numbers dates names and places in the world".split()


def conversations(count: int) -> list[list[Message]]:
    """Questions of 12 words, and answers whose length in words is log-normal: half below 55, a few of 600."""
    dice = random.Random(0)
    return [_conversation(dice, int(min(600, dice.lognormvariate(4, 1)))) for _ in range(count)]


def _conversation(dice: random.Random, words: int) -> list[Message]:
    question, answer = (" ".join(dice.choices(_WORDS, k=length)) for length in (12, max(4, words)))
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def encoded(count: int, tokenizer: Tokenizer) -> list[Example]:
    """The same through the model's chat template; every token is learned, which is what the peers do untold."""
    policy = MaskPolicy(supervise="all")
    samples = [
        Sample("chat", f"row {number}", messages=tuple(chat)) for number, chat in enumerate(conversations(count))
    ]
    return [encode_sample(sample, tokenizer, policy) for sample in samples]
