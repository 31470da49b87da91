"""Small models that learn to write words backwards, for figures: letters in, letters out.

Backwards, because then the right place to look is never where the word order alone would put it.

Legend: B words, S letters of the source, T of the target.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from intaglio.models.init import init_weights
from intaglio.models.seq2seq import Seq2Seq
from intaglio.specs import Seq2SeqSpec

__all__ = ["END", "START", "behind_start", "ids_of", "learn", "letters_of", "reversed_to_end", "words_model"]

START: Final = 0
"""The start token; letters are 1 to 26."""

END: Final = 27
"""The end token, of models with a vocabulary of 28."""


def words_model(hidden_size: int, vocab_size: int = END + 1, **changes: Any) -> Seq2Seq:
    """A GRU encoder and decoder with fresh weights; `changes` to `Seq2SeqSpec`."""
    sizes = {"vocab_size": vocab_size, "embedding_size": hidden_size // 2, "hidden_size": hidden_size}
    spec = {**sizes, "cell": {"kind": "gru"}, "start_token_id": START, **changes}
    model = Seq2Seq(Seq2SeqSpec.model_validate(spec))
    init_weights(model, 0)
    return model


def learn(model: Seq2Seq, target_of: Callable[[Tensor], Tensor], *, steps: int, batch: int, longest: int) -> Seq2Seq:
    """Trains with Adam on random words of 2 to `longest` letters.

    Args:
        model: is changed, and put into evaluation.
        target_of: from sources (B, S) to what shall be written, (B, T).
        steps, batch, longest: of the run.
    """
    optimizer, dice = torch.optim.Adam(model.parameters(), lr=5e-3), torch.Generator().manual_seed(0)
    for _ in range(steps):
        length = int(torch.randint(2, longest + 1, (1,), generator=dice))
        source = torch.randint(1, 27, (batch, length), generator=dice)
        target = target_of(source)
        loss = F.cross_entropy(model(source, behind_start(target)).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def reversed_to_end(source: Tensor) -> Tensor:
    """(B, S) -> (B, S + 1): the word backwards, and the end token."""
    return F.pad(source.flip(1), (0, 1), value=END)


def behind_start(target: Tensor) -> Tensor:
    """What the decoder reads to write (B, T): the start and all but the last."""
    return F.pad(target[:, :-1], (1, 0), value=START)


def ids_of(word: str) -> Tensor:
    """(1, S)"""
    return torch.tensor([[ord(letter) - 96 for letter in word]])


def letters_of(ids: Tensor) -> list[str]:
    """Of (T,) ids, as they are written in figures."""
    special = {START: "<s>", END: "</s>"}
    return [special.get(one, chr(96 + one)) for one in ids.tolist()]
