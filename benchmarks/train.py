"""Full fine-tuning of SmolLM2 in bf16 on ragged chats, beside a plain transformers forward and backward.

Ours is the whole optimizer step on real rows (packed, documents apart, fp32 masters, AdamW); the peer is forward, loss
and backward alone on two rows of 1024 tokens, every one real. Real tokens per second on both sides, and the share of
the machine's measured matrix-product peak that ours reaches (three times the forward's FLOPs).
"""

import argparse
import os
import random

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from _timing import in_turn, model_directory, report
from transformers import AutoModelForCausalLM

from intaglio import load_model
from intaglio.data.examples import Example
from intaglio.data.store import InMemory
from intaglio.training.batches import BatchStream
from intaglio.training.log import measured_peak
from intaglio.training.loop import Loop
from intaglio.training.master import MasterWeights
from intaglio.training.objectives.language_model import LanguageModel
from intaglio.training.optimizer import OptimizerSpec, build_optimizers
from intaglio.training.schedule import ScheduleSpec

ROWS, LENGTH = 2, 1024


def ragged(count: int = 400) -> InMemory:
    """Chats of log-normal lengths, as the peers' scripts draw them: a question of some 30 tokens, an answer."""
    dice = random.Random(0)
    examples = []
    for number in range(count):
        length = 30 + int(min(600, dice.lognormvariate(4, 1)))
        ids = np.array([dice.randrange(100, 40_000) for _ in range(length)], dtype=np.int32)
        examples.append(Example(ids, np.arange(length) >= 30, f"row {number}"))
    return InMemory(examples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    directory = model_directory()
    model = load_model(directory, dtype="float32")
    masters = MasterWeights(model, torch.bfloat16)
    stream = BatchStream(ragged(), ROWS, LENGTH)
    optimizers = build_optimizers(OptimizerSpec(), masters.masters)
    loop = Loop(model, masters, LanguageModel(), stream, optimizers, ScheduleSpec(), steps=1000)
    model.train()
    peer = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).train()
    ids = torch.randint(100, 40_000, (ROWS, LENGTH))
    tokens: list[int] = []

    def ours() -> None:
        tokens.append(loop.step().tokens)

    def theirs() -> None:
        peer(ids, labels=ids).loss.backward()

    ours()
    theirs()
    tokens.clear()
    time, peer_time = in_turn(ours, theirs, options.rounds)
    speed, peer_speed = sum(tokens) / len(tokens) / time, ROWS * LENGTH / peer_time
    peak = measured_peak(torch.bfloat16, size=2048, seconds=2.0)
    report(
        "train_full_bf16",
        real_tokens_per_second=round(speed, 1),
        peer_tokens_per_second=round(peer_speed, 1),
        ratio=round(speed / peer_speed, 2),
        mfu=round(3 * model.spec.flops_per_token(128) * speed / peak, 3),
        packing=round(stream.efficiency, 3),
    )


if __name__ == "__main__":
    main()
