"""The log probability of each target through the output matrix, in chunks, so that (tokens, vocabulary) is never whole.

Legend: n tokens with a target, E features, V vocabulary, C tokens of a chunk, R rows of a block.

What preference and policy losses are made of: unlike in `chunked_loss` the weight of each token is known only when the
loss is. What hidden states need of the gradient does not wait for it: the derivative of one token's log probability by
its own hidden state is kept, (n, E), and scaled when its weight is known. An output matrix that learns does wait, and
its logits are made a second time.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intaglio.parallel.vocabulary import WHOLE, Vocabulary
from intaglio.training.objectives.softmax import block_rows, softmax_of

__all__ = ["chunked_log_probs", "chunked_log_probs_and_entropies"]


def chunked_log_probs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    chunk: int = 1024,
    softcap: float | None = None,
    temperature: float = 1.0,
    vocabulary: Vocabulary = WHOLE,
) -> Tensor:
    """log softmax(cap(hidden @ weight^T) / temperature)[target] of each token; exact in value and gradient.

    Logits and their softmax are fp32 whatever the dtype of the inputs.

    Args:
        hidden: (n, E); n may be 0.
        weight: (V, E).
        targets: (n,).
        chunk: C; more memory, fewer products.
        softcap: see `DecoderSpec.logit_softcap`.
        temperature: divides the logits; that of sampling, where these are compared with what sampling saw.
        vocabulary: how it lies, where ranks share the rows of `weight`.

    Returns:
        (n,) in nats, in fp32.
    """
    return _apply(hidden, weight, targets, chunk, softcap, temperature, False, vocabulary)[0]


def chunked_log_probs_and_entropies(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    chunk: int = 1024,
    softcap: float | None = None,
    temperature: float = 1.0,
    vocabulary: Vocabulary = WHOLE,
) -> tuple[Tensor, Tensor]:
    """The same and, without a gradient, each distribution's entropy (n,) in nats."""
    return _apply(hidden, weight, targets, chunk, softcap, temperature, True, vocabulary)


def _apply(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    chunk: int,
    softcap: float | None,
    temperature: float,
    entropies: bool,
    vocabulary: Vocabulary,
) -> tuple[Tensor, Tensor]:
    assert temperature > 0, "at temperature 0 there are no probabilities"
    if not torch.is_grad_enabled():
        hidden, weight = hidden.detach(), weight.detach()
    tokens, count = vocabulary.tokens, len(targets)
    told, entropy = _LogProbs.apply(
        tokens.cut(hidden), weight, tokens.cut(targets), chunk, softcap, temperature, entropies, vocabulary
    )
    return tokens.join(told, count), tokens.join(entropy, count if entropies else 0)


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        chunk: int,
        softcap: float | None,
        temperature: float,
        entropies: bool,
        vocabulary: Vocabulary,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        log_probs = hidden.new_empty(len(targets), dtype=wide)
        entropy = hidden.new_empty(len(targets) if entropies else 0, dtype=wide)
        ahead = hidden.requires_grad and not weight.requires_grad  # or all of it is made in backward
        d_hidden = torch.empty_like(hidden) if ahead else None  # (n, E)
        for rows in _chunks(len(targets), chunk):
            logits = vocabulary.spread(F.linear(hidden[rows], weight))  # (C, V)
            for block, places in _blocks(logits, rows, vocabulary):
                found = softmax_of(block, targets[places], softcap, temperature, vocabulary)
                log_probs[places] = found.log_probs
                if entropies:
                    entropy[places] = vocabulary.sum(torch.special.entr(found.probabilities).sum(dim=-1))
                if ahead:
                    block.copy_(found.slope(targets[places]).neg_())
            if d_hidden is not None:
                d_hidden[rows] = vocabulary.own(logits) @ weight
            del logits  # or the next chunk's would be made beside it
        d_hidden = None if d_hidden is None else vocabulary.gradient(d_hidden)
        ctx.save_for_backward(targets, d_hidden, *(() if ahead else (hidden, weight)))
        ctx.mark_non_differentiable(entropy)
        ctx.how = chunk, softcap, temperature, vocabulary
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        targets, d_hidden, *inputs = ctx.saved_tensors
        scale = gradients[0]  # (n,)
        nothing = (None,) * 6
        if d_hidden is not None:
            return d_hidden * scale[:, None].to(d_hidden.dtype), None, *nothing
        hidden, weight = inputs
        return *_both(hidden, weight, targets, scale, *ctx.how), *nothing


def _both(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    scale: Tensor,
    chunk: int,
    softcap: float | None,
    temperature: float,
    vocabulary: Vocabulary,
) -> tuple[Tensor, Tensor]:
    """The gradients by the hidden states (n, E) and the output matrix (V, E), from logits that are made again."""
    d_hidden = torch.empty_like(hidden)
    d_weight = torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
    for rows in _chunks(len(targets), chunk):
        logits = vocabulary.spread(F.linear(hidden[rows], weight))  # (C, V)
        for block, places in _blocks(logits, rows, vocabulary):
            slope = softmax_of(block, targets[places], softcap, temperature, vocabulary).slope(targets[places])
            block.copy_(slope.mul_(-scale[places, None]))
        logits = vocabulary.own(logits)
        d_hidden[rows] = logits @ weight
        d_weight += logits.T @ hidden[rows]
        del logits
    return vocabulary.gradient(d_hidden), d_weight.to(weight.dtype)


def _chunks(count: int, chunk: int) -> Iterator[slice]:
    for start in range(0, count, chunk):
        yield slice(start, min(start + chunk, count))


def _blocks(logits: Tensor, rows: slice, vocabulary: Vocabulary) -> Iterator[tuple[Tensor, slice]]:
    """The logits of a chunk in blocks that a cache holds (R, V), and the places of each among all tokens."""
    size = block_rows(logits, vocabulary)
    for start in range(0, len(logits), size):
        block = logits[start : start + size]
        yield block, slice(rows.start + start, rows.start + start + len(block))
