"""A larger vocabulary: more rows for the embeddings and the output matrix, and a spec that says so.

A new row is the mean of the known ones. To the layers a new token is then the average of all others, and its logit is
the mean of theirs, which no softmax makes larger than 1 / V: what the model says otherwise hardly changes (Hewitt 2021,
"Initializing new word embeddings for pretrained language models").

Legend: V vocabulary, E features.
"""

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["grow_vocabulary"]

_MATRICES = ("embed_tokens", "embed_source", "embed_target", "lm_head")


@torch.no_grad()
def grow_vocabulary(model: Any, known: int, size: int) -> None:
    """Gives a language model rows for `size` tokens, in place; those from `known` on become the mean of those before.

    A vocabulary never shrinks: one that is padded beyond `size` stays as large as it is, and the rows behind `size`
    as they are. Tied matrices stay one. `model.spec` follows, and with it the config that is written.

    Args:
        model: of any kind that has a vocabulary, before adapters are attached.
        known: tokens whose rows mean something.
        size: tokens there are to be.
    """
    rows = model.spec.vocab_size
    assert 0 < known <= min(rows, size), f"{known} known tokens, {rows} rows, {size} tokens wanted"
    grown: dict[int, nn.Parameter] = {}
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in _MATRICES:
            weight = module.weight
            if id(weight) not in grown:
                grown[id(weight)] = nn.Parameter(_grown(weight, known, size), weight.requires_grad)
            _replace(module, grown[id(weight)])
    if getattr(model, "logits_bias", None) is not None:
        model.logits_bias = _grown(model.logits_bias.mT, known, size).mT.contiguous()
    model.spec = model.spec.updated(vocab_size=max(rows, size))


def _grown(matrix: Tensor, known: int, size: int) -> Tensor:
    """(V, E) -> (max(V, size), E)"""
    mean = matrix[:known].mean(dim=0, dtype=torch.float32).to(matrix.dtype)  # (E,)
    more = max(0, size - len(matrix))
    whole = torch.cat((matrix, mean.expand(more, -1)))
    whole[known:size] = mean
    return whole


def _replace(module: nn.Module, weight: nn.Parameter) -> None:
    """Gives an embedding or an output matrix its new rows, and the number of them."""
    module.weight = weight
    if isinstance(module, nn.Embedding):
        module.num_embeddings = len(weight)
    else:
        assert isinstance(module, nn.Linear), f"{type(module).__name__} holds no vocabulary"
        module.out_features = len(weight)
