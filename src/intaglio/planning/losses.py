"""What losses over a vocabulary keep, and what they need for a moment. No torch.

Legend: T tokens, E features, V vocabulary, C tokens of a chunk. Where ranks share the vocabulary, each has V / tp rows
of the output matrix; it makes the logits of these, and takes the softmax over them (loss parallel) or over all V.
"""

from dataclasses import dataclass
from typing import Final

from intaglio.planning.shards import chunk as piece
from intaglio.planning.tape import FLOAT
from intaglio.specs import DecoderSpec
from intaglio.specs.parallel import ParallelSpec

__all__ = ["INT64", "LOSS_BLOCK", "LossBytes", "language_model_loss", "log_prob_loss", "score_loss"]

INT64: Final = 8

LOSS_BLOCK: Final = 1 << 19
"""Logits whose softmax the chunked loss makes at a time: two megabytes of fp32, which a cache holds."""


@dataclass(frozen=True)
class LossBytes:
    """Bytes.

    Attributes:
        kept: from its forward to its backward.
        passing: for a moment, beside that.
    """

    kept: int
    passing: int


def language_model_loss(
    spec: DecoderSpec,
    tokens: int,
    itemsize: int,
    chunk: int | None,
    *,
    trained: bool = True,
    layout: ParallelSpec = ParallelSpec(),  # noqa: B008 (frozen)
) -> LossBytes:
    """Cross-entropy of `tokens` targets (`training.objectives.chunked_loss`).

    Args:
        spec: of the model.
        tokens: T.
        itemsize: bytes of one element in the compute dtype.
        chunk: C; None makes all logits at once.
        trained: whether the output matrix trains.
        layout: of the ranks.
    """
    if chunk is None:
        return _plain(spec, tokens, itemsize, layout)
    own = piece(tokens, layout.cp, 0)
    rows, own_rows = tokens * spec.hidden_size, own * spec.hidden_size
    matrix = piece(spec.vocab_size, layout.tp, 0) * spec.hidden_size if trained else 0
    count = min(chunk, own)
    logits = count * _seen(spec, layout)
    softmax = logits * itemsize + _block(spec, count, layout) * _block_bytes(spec, itemsize)
    forward = 2 * rows * itemsize + max(softmax, (logits + matrix) * itemsize)
    rounded = 0 if itemsize == FLOAT else matrix * itemsize
    backward = own_rows * itemsize + matrix * FLOAT + rounded
    return LossBytes(own_rows * itemsize + matrix * FLOAT + tokens * INT64, max(forward, backward))


def log_prob_loss(
    spec: DecoderSpec,
    tokens: int,
    itemsize: int,
    chunk: int,
    *,
    trained: bool = True,
    layout: ParallelSpec = ParallelSpec(),  # noqa: B008 (frozen)
) -> LossBytes:
    """The log-probability of each target (`training.objectives.token_logprobs`): arguments as above.

    Targets and their places are kept. The hidden states are kept too, and the logits made again in the backward; or,
    where the output matrix is frozen, their gradient is. In the backward the matrix's gradient stands in fp32, with a
    chunk's part of it beside.
    """
    own = piece(tokens, layout.cp, 0)
    own_rows = own * spec.hidden_size
    count = min(chunk, own)
    logits = count * _seen(spec, layout) * itemsize
    softmax = logits + _block(spec, count, layout) * max(_block_bytes(spec, itemsize), FLOAT)
    forward = softmax if trained else softmax + own_rows * itemsize
    matrix = piece(spec.vocab_size, layout.tp, 0) * spec.hidden_size if trained else 0
    backward = own_rows * itemsize + matrix * FLOAT + max(softmax, matrix * itemsize + logits if trained else 0)
    rows = tokens * spec.hidden_size if trained else own_rows  # this rank's are a view of all
    return LossBytes(rows * itemsize + tokens * 2 * INT64, max(forward, backward))


def score_loss() -> LossBytes:
    """A few numbers for each answer: nothing to speak of."""
    return LossBytes(0, 0)


def _seen(spec: DecoderSpec, layout: ParallelSpec) -> int:
    """Logits of a token that the softmax takes on this rank: of its rows of the matrix, or of all, collected."""
    return piece(spec.vocab_size, layout.tp, 0) if layout.loss_parallel else spec.vocab_size


def _block(spec: DecoderSpec, count: int, layout: ParallelSpec) -> int:
    """Logits whose softmax is made at a time: of a chunk at once where ranks ask each other."""
    if layout.tp > 1 and layout.loss_parallel:
        return count * _seen(spec, layout)
    return min(max(LOSS_BLOCK // spec.vocab_size, 1), count) * spec.vocab_size


def _block_bytes(spec: DecoderSpec, itemsize: int) -> int:
    """Of one logit of a block at the worst moment, beside what the product gave: fp32; with a cap, its slope and their
    product too."""
    if spec.logit_softcap:
        return 3 * FLOAT
    return 0 if itemsize == FLOAT else FLOAT


def _plain(spec: DecoderSpec, tokens: int, itemsize: int, layout: ParallelSpec) -> LossBytes:
    """Whole: hidden states, log-probabilities (T, V; fp32), targets and their number; for a moment two gradients
    as large as the log-probabilities, or three where the vocabulary is shared out (PyTorch's `loss_parallel` has its
    targets, the probabilities and their sum as well). Ranks that share a sequence make the loss of their own tokens.
    """
    tokens, shared = piece(tokens, layout.cp, 0), layout.tp > 1 and layout.loss_parallel
    whole = tokens * _seen(spec, layout) * FLOAT
    kept = tokens * spec.hidden_size * itemsize + whole + tokens * INT64 + FLOAT
    return LossBytes(kept, (3 if shared else 2) * whole)
