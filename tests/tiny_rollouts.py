"""Tiny policies and prompts for tests of learning from rewards."""

from collections.abc import Sequence

import numpy as np
import torch

from intaglio.data.preference_encoding import PromptExample
from intaglio.models.decoder import Decoder
from intaglio.training.rl.rollouts import Rollout, flat_rollout
from tiny_specs import block, decoder
from toy_llms import PADDED_VOCAB, random_model

__all__ = ["asked", "policy", "recorded_rollout"]


def policy(seed: int = 0, **fields: object) -> Decoder:
    """A LLaMA of two layers whose choices are open: small random weights."""
    layer = block(repeat=2, attention={"num_heads": 4, "num_kv_heads": 2, "rope": {}})
    spec = decoder(layer, vocab_size=PADDED_VOCAB, max_position_embeddings=128, **fields)
    model = random_model(spec, seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(0.5)
    return model


def asked(*prompts: Sequence[int], **columns: Sequence[object]) -> list[PromptExample]:
    """Prompts as ids, with a value of each column."""
    return [
        PromptExample(
            np.array(ids, dtype=np.int32), f"row:{row}", {key: values[row] for key, values in columns.items()}, "text"
        )
        for row, ids in enumerate(prompts)
    ]


def recorded_rollout(seed: int = 0, lengths: Sequence[int] = (3, 1, 5, 2)) -> Rollout:
    """A rollout with random numbers of every kind."""
    dice = torch.Generator().manual_seed(seed)

    def ids(count: int) -> list[int]:
        found: list[int] = torch.randint(3, 300, (count,), generator=dice).tolist()
        return found

    made = flat_rollout(
        [ids(2 + row) for row in range(len(lengths))], [ids(n) for n in lengths], ["row"] * len(lengths)
    )
    names = ("log_probs", "reference", "values", "advantages", "returns")
    numbers = dict(zip(names, torch.randn(len(names), sum(lengths), generator=dice), strict=True))
    numbers["log_probs"], numbers["reference"] = numbers["log_probs"] - 6, numbers["reference"] - 6
    return Rollout(**{**made.tensors(), **numbers}, wheres=made.wheres)
