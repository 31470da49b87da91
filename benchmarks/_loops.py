"""Our side of the training benchmarks: the loop that `intaglio train` runs, on SmolLM2 and on a model of 10 million."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from intaglio import load_model
from intaglio.adapters.attach import attach
from intaglio.data.examples import Example
from intaglio.data.store import InMemory
from intaglio.models.decoder import Decoder
from intaglio.models.init import init_weights
from intaglio.specs import DecoderSpec
from intaglio.specs.adapter import LoRASpec
from intaglio.training.batching.batches import Batch, BatchStream, make_batch
from intaglio.training.loop import Loop
from intaglio.training.objectives.language_model import LanguageModel
from intaglio.training.stepping.master import MasterWeights
from intaglio.training.stepping.optimizer import OptimizerSpec, build_optimizers
from intaglio.training.stepping.schedule import ScheduleSpec

__all__ = ["SMALL", "SMALL_BATCH", "SMALL_LENGTH", "ChatsInOrder", "adapting", "fine_tuning", "mfu", "pretraining"]

SMALL = {"vocab_size": 4096, "layers": 7, "hidden_size": 320, "num_heads": 5, "intermediate_size": 864}
"""A LLaMA-style model of 10 million parameters with tied embeddings; every side builds it from these numbers."""

SMALL_BATCH, SMALL_LENGTH = 8, 512


class ChatsInOrder(BatchStream):
    """The next few chats as one micro-batch, in the order they come, as the peers are given them.

    Args:
        examples: read round and round.
        chats: of one micro-batch.
    """

    def __init__(self, examples: Sequence[Example], chats: int) -> None:
        super().__init__(InMemory(list(examples)), 1, max(len(example.ids) for example in examples))
        self._examples, self._chats, self._next = examples, chats, 0

    def step(self, accumulation: int) -> list[Batch]:
        """See `BatchStream.step`."""
        return [self._batch() for _ in range(accumulation)]

    def _batch(self) -> Batch:
        places = range(self._next, self._next + self._chats)
        self._next += self._chats
        return make_batch([self._examples[place % len(self._examples)] for place in places])


def fine_tuning(directory: Path, stream: BatchStream) -> Loop:
    """SmolLM2 in bf16 with fp32 masters and AdamW, one micro-batch a step."""
    return _loop(load_model(directory, dtype="float32"), torch.bfloat16, stream)


def adapting(directory: Path, stream: BatchStream, spec: LoRASpec) -> Loop:
    """SmolLM2 frozen in bf16 and an fp32 adapter beside it, AdamW, one micro-batch a step."""
    model = load_model(directory, dtype="bfloat16")
    attach(model, spec)
    return _loop(model, torch.float32, stream)


def pretraining(dtype: torch.dtype) -> Loop:
    """`SMALL` from random weights on random ids, `SMALL_BATCH` documents of `SMALL_LENGTH` tokens a step."""
    model = Decoder(small_spec())
    init_weights(model, seed=0)
    dice = np.random.default_rng(0)
    ids = dice.integers(0, SMALL["vocab_size"], (64, SMALL_LENGTH), dtype=np.int32)
    supervised = np.arange(SMALL_LENGTH) > 0
    examples = InMemory([Example(row, supervised, f"row {number}") for number, row in enumerate(ids)])
    return _loop(model, dtype, BatchStream(examples, SMALL_BATCH, SMALL_LENGTH, "contiguous"))


def small_spec() -> DecoderSpec:
    """`SMALL` as a spec of ours."""
    layer = {
        "repeat": SMALL["layers"],
        "norm": {"kind": "rms_norm", "eps": 1e-5},
        "attention": {"num_heads": SMALL["num_heads"], "rope": {"theta": 10000}},
        "feed_forward": {"intermediate_size": SMALL["intermediate_size"], "activation": "silu", "gated": True},
    }
    sizes = {name: SMALL[name] for name in ("vocab_size", "hidden_size")}
    whole = {**sizes, "max_position_embeddings": SMALL_LENGTH, "tie_embeddings": True, "layers": [layer]}
    return DecoderSpec.model_validate(whole)


def _loop(model: Decoder, dtype: torch.dtype, stream: BatchStream) -> Loop:
    masters = MasterWeights(model, dtype)
    optimizers = build_optimizers(OptimizerSpec(), masters.masters)
    return Loop(model.train(), masters, LanguageModel(), stream, optimizers, ScheduleSpec(), steps=1000)


def mfu(spec: DecoderSpec, context: int, tokens_per_second: float, peak: float) -> float:
    """The share of `peak` FLOPs per second: three times the forward's, for a mean of `context` visible tokens."""
    return round(3 * spec.flops_per_token(context) * tokens_per_second / peak, 3)
