"""What a step computes, for the share of the machine's peak that it reaches."""

from intaglio.specs import EncoderDecoderSpec, ModelSpec
from intaglio.specs.recurrent import RecurrentSpec
from intaglio.specs.seq2seq import Seq2SeqSpec

__all__ = ["step_flops"]


def step_flops(spec: ModelSpec, document: int, frozen: bool = False) -> tuple[int, int]:
    """FLOPs, forward and backward, of a token in the layers, and of a target in the output matrix, which no other
    token meets.

    Args:
        spec: of the model; of a pair's two sides each token is counted as half of what one of each side takes.
        document: tokens that stand together, both sides of a pair.
        frozen: the matrices do not train, which spares one product of three; their adapters are not counted.
    """
    pairs = isinstance(spec, EncoderDecoderSpec | Seq2SeqSpec)
    features = spec.output_size if isinstance(spec, RecurrentSpec | Seq2SeqSpec) else spec.hidden_size
    sides = 2 if pairs else 1
    context = max(document // sides, 1)
    head = 2 * spec.vocab_size * features
    limited = context if spec.context_limit is None else min(context, spec.context_limit)
    products = 2 if frozen else 3
    return products * (spec.flops_per_token(limited) - head) // sides, products * head
