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
    rows, rank_rows = tokens * spec.hidden_size, piece(spec.vocab_size, layout.tp, 0)
    matrix = rank_rows * spec.hidden_size if trained else 0
    count = min(chunk, tokens)
    logits = count * rank_rows
    softmax = logits * itemsize + _block(spec, count, layout) * _block_bytes(spec, itemsize)
    forward = 2 * rows * itemsize + max(softmax, (logits + matrix) * itemsize)
    rounded = 0 if itemsize == FLOAT else matrix * itemsize
    backward = rows * itemsize + matrix * FLOAT + rounded
    return LossBytes(rows * itemsize + matrix * FLOAT + tokens * INT64, max(forward, backward))


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

    The hidden states are kept and the logits made again in the backward; or, where the output matrix is frozen, their
    gradient is kept. In the backward the matrix's gradient stands in fp32, with a chunk's part of it beside.
    """
    rows, rank_rows = tokens * spec.hidden_size, piece(spec.vocab_size, layout.tp, 0)
    count = min(chunk, tokens)
    logits = count * rank_rows * itemsize
    softmax = logits + _block(spec, count, layout) * max(_block_bytes(spec, itemsize), FLOAT)
    forward = softmax if trained else softmax + rows * itemsize
    matrix = rank_rows * spec.hidden_size if trained else 0
    backward = rows * itemsize + matrix * FLOAT + max(softmax, matrix * itemsize + logits if trained else 0)
    return LossBytes(rows * itemsize + tokens * (INT64 + FLOAT), max(forward, backward))


def score_loss() -> LossBytes:
    """A few numbers for each answer: nothing to speak of."""
    return LossBytes(0, 0)


def _block(spec: DecoderSpec, count: int, layout: ParallelSpec) -> int:
    """Logits whose softmax is made at a time: of a chunk at once where ranks ask each other."""
    if layout.tp > 1:
        return count * (piece(spec.vocab_size, layout.tp, 0) if layout.loss_parallel else spec.vocab_size)
    return min(max(LOSS_BLOCK // spec.vocab_size, 1), count) * spec.vocab_size


def _block_bytes(spec: DecoderSpec, itemsize: int) -> int:
    """Of one logit of a block at the worst moment, beside what the product gave: fp32; with a cap, its slope and their
    product too."""
    if spec.logit_softcap:
        return 3 * FLOAT
    return 0 if itemsize == FLOAT else FLOAT


def _plain(spec: DecoderSpec, tokens: int, itemsize: int, layout: ParallelSpec) -> LossBytes:
    """Whole: hidden states, log-probabilities (T, V; fp32), targets and their number; for a moment two gradients
    as large as the log-probabilities."""
    seen = piece(spec.vocab_size, layout.tp, 0) if layout.loss_parallel else spec.vocab_size
    whole = tokens * seen * FLOAT
    return LossBytes(tokens * spec.hidden_size * itemsize + whole + tokens * INT64 + FLOAT, 2 * whole)
