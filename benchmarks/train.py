"""Full fine-tuning of SmolLM2 in bf16 on ragged chats, beside a plain transformers forward and backward.

Ours is the whole optimizer step on real rows (packed, documents apart, fp32 masters, AdamW); the peer is forward, loss
and backward alone on two rows of 1024 tokens, every one real. All tokens are learned on both sides. Real tokens per
second, and the share of the machine's measured matrix-product peak that ours reaches (three times the forward's FLOPs).

`--profile` says instead where the time of our step goes, on SmolLM2 and on a model of 10 million parameters.
"""

import argparse
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from _chats import encoded
from _loops import fine_tuning, mfu, pretraining
from _profile import shares
from _timing import in_turn, model_directory, report
from transformers import AutoModelForCausalLM

from intaglio import load_tokenizer
from intaglio.data.store import InMemory
from intaglio.models.decoder import Decoder
from intaglio.training.batching.batches import BatchStream
from intaglio.training.log import measured_peak
from intaglio.training.loop import Loop

ROWS, LENGTH = 2, 1024
CHATS = 400
MEAN_CONTEXT = 128
"""Tokens that one of such a chat sees, about."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    loop = chats_loop()
    if options.profile:
        where_time_goes(loop, options.rounds)
    else:
        beside_transformers(loop, options.rounds)


def chats_loop() -> Loop:
    """Ours, on packed rows."""
    directory = model_directory()
    examples = InMemory(encoded(CHATS, load_tokenizer(directory)))
    return fine_tuning(directory, BatchStream(examples, ROWS, LENGTH))


def where_time_goes(loop: Loop, steps: int) -> None:
    """A line of shares for each model and dtype."""
    small = {f"10M {dtype}": pretraining(dtype) for dtype in (torch.float32, torch.bfloat16)}
    for name, one in {"SmolLM2-135M torch.bfloat16": loop, **small}.items():
        one.step()
        report("train_profile", model=name.replace("torch.", ""), shares=shares(one.step, steps))


def beside_transformers(loop: Loop, rounds: int) -> None:
    """The line of ratios."""
    assert isinstance(loop.model, Decoder)
    peer = AutoModelForCausalLM.from_pretrained(model_directory(), dtype=torch.bfloat16).train()
    ids = torch.randint(100, 40_000, (ROWS, LENGTH))
    tokens: list[int] = []

    def ours() -> None:
        tokens.append(loop.step().tokens)

    def theirs() -> None:
        peer(ids, labels=ids).loss.backward()

    ours()
    theirs()
    tokens.clear()
    time, peer_time = in_turn(ours, theirs, rounds)
    speed, peer_speed = sum(tokens) / len(tokens) / time, ROWS * LENGTH / peer_time
    peak = measured_peak(torch.bfloat16, size=2048, seconds=2.0)
    report(
        "train_full_bf16",
        real_tokens_per_second=round(speed, 1),
        peer_tokens_per_second=round(peer_speed, 1),
        ratio=round(speed / peer_speed, 2),
        mfu=mfu(loop.model.spec, MEAN_CONTEXT, speed, peak),
        packing=round(loop.stream.efficiency, 3),
    )


if __name__ == "__main__":
    main()
