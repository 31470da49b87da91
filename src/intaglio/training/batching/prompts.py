"""A recipe's prompts, where a policy answers them itself: as ids, and with what else their rows hold."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from intaglio.data.examples import Counts, Example, MaskPolicy
from intaglio.data.preference_encoding import PromptExample, encode_prompts
from intaglio.data.preferences import prompt_of
from intaglio.data.readers import Row
from intaglio.data.store import Store
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.batching.batches import Batch

__all__ = ["PromptBatch", "prompt_rows", "prompts_of"]


def prompt_rows(
    rows: Iterable[Row], tokenizer: Tokenizer, counts: Counts, longest: int
) -> Iterator[tuple[Example, PromptExample]]:
    """The prompts of at most `longest` tokens, as examples that teach nothing and as themselves."""
    for prompt in encode_prompts(map(prompt_of, rows), tokenizer, MaskPolicy(), counts, longest):
        yield Example(prompt.prompt, np.zeros(len(prompt.prompt), dtype=np.bool_), prompt.where), prompt


def prompts_of(stores: Iterable[Store], known: Mapping[str, PromptExample]) -> list[PromptExample]:
    """The prompts whose examples these are, in their order, each as often as it stands there."""
    return [known[store[i].where] for store in stores for i in range(len(store))]


@dataclass(frozen=True)
class PromptBatch(Batch):
    """Held-out prompts, to be answered and scored; its targets are the prompts.

    Attributes:
        prompts: what is answered.
    """

    prompts: tuple[PromptExample, ...] = ()

    @classmethod
    def of(cls, prompts: Iterable[PromptExample]) -> "PromptBatch":
        """A batch of these."""
        asked, nothing = tuple(prompts), torch.empty(1, 0, dtype=torch.long)
        return cls(nothing, nothing, [], nothing, len(asked), [prompt.where for prompt in asked], asked)
