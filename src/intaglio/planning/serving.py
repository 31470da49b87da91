"""Serving, by arithmetic: weights, keys and values in blocks, how many sequences and how long ones, how fast. No torch.

Decoding is bound by memory: each step reads the weights once and the keys and values of every sequence. That gives a
throughput no engine exceeds; what one reaches of it is not said here.
"""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from intaglio.errors import UserError
from intaglio.planning.cache import BLOCK, cache_bytes, cached_bytes_by_kind
from intaglio.planning.devices import Device, overhead
from intaglio.planning.layouts import require_possible
from intaglio.planning.shards import Rank
from intaglio.planning.states import frozen_bytes, tensors_of
from intaglio.specs import DecoderSpec, MoESpec, dtype_bytes
from intaglio.specs.base import Spec
from intaglio.specs.parallel import ParallelSpec
from intaglio.specs.quantization import QuantizationSpec

__all__ = ["ServingPlan", "ServingSpec", "plan_serving"]


class ServingSpec(Spec):
    """How a model is served.

    Attributes:
        dtype: of weights, keys and values.
        weights: of the matrices in layers: as `dtype` says, or 4 bits (`nf4`).
        context: tokens of a sequence, prompt and answer together.
        concurrency: sequences at once; None: as many as fit.
        step_tokens: in one forward, of prompts and answers together (`EngineConfig.max_tokens_per_step`).
        share: of the device's memory that is used at most; the rest is left to others.
        block: tokens in a block of the cache.
    """

    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    weights: Literal["plain", "nf4"] = "plain"
    context: int = Field(4096, gt=0)
    concurrency: int | None = Field(None, gt=0)
    step_tokens: int = Field(512, gt=0)
    share: float = Field(0.9, gt=0, le=1)
    block: int = Field(BLOCK, gt=0)


@dataclass(frozen=True)
class ServingPlan:
    """What serving takes on each rank of tensor parallelism, and what there is room for.

    Attributes:
        weights: bytes.
        kv_by_kind: bytes of one sequence's keys and values by kind of layer.
        working: bytes of a forward: features of a step's tokens, and logits.
        budget: bytes for keys and values.
        concurrency: sequences that are planned with.
        largest_concurrency: sequences of this context that fit.
        largest_context: tokens that one sequence alone could have, as far as the model goes.
        tokens_per_second: of all sequences together, at most.
        seconds_per_token: of one sequence, at least.
    """

    weights: int
    kv_by_kind: dict[str, int]
    working: int
    budget: int
    concurrency: int
    largest_concurrency: int
    largest_context: int
    tokens_per_second: float
    seconds_per_token: float

    @property
    def kv_cache(self) -> int:
        """Bytes of all sequences' keys and values."""
        return self.concurrency * sum(self.kv_by_kind.values())

    @property
    def peak_bytes(self) -> int:
        return self.weights + self.working + self.kv_cache

    def plain(self) -> dict[str, Any]:
        """As JSON; `components` add up to `peak_bytes`."""
        kinds = {f"kv cache: {kind}": self.concurrency * size for kind, size in self.kv_by_kind.items()}
        return {
            "peak_bytes": self.peak_bytes,
            "components": {"weights": self.weights, **kinds, "working": self.working},
            "kv_bytes_per_sequence": sum(self.kv_by_kind.values()),
            "kv_budget_bytes": self.budget,
            "concurrency": self.concurrency,
            "largest_concurrency": self.largest_concurrency,
            "largest_context": self.largest_context,
            "tokens_per_second": self.tokens_per_second,
            "seconds_per_token": self.seconds_per_token,
        }


def plan_serving(spec: DecoderSpec, serving: ServingSpec, device: Device, tp: int = 1) -> ServingPlan:
    """What serving takes on `tp` devices.

    Raises:
        UserError: the context is longer than the model's, the heads cannot be shared out, or nothing is left for keys
            and values.
    """
    if serving.context > spec.context_limit:
        what = f"a context of {serving.context} tokens, where the model takes {spec.context_limit}"
        raise UserError(what, where="context", mend="shorten it")
    layout = ParallelSpec(tp=tp)
    require_possible(spec, layout)
    itemsize = dtype_bytes(serving.dtype)
    quantization = QuantizationSpec() if serving.weights == "nf4" else None
    weights = frozen_bytes(tensors_of(spec, layout, Rank()), itemsize, quantization)
    working = _working(spec, serving, itemsize)
    budget = _budget(device, serving, weights + working, tp)
    kinds = cached_bytes_by_kind(spec, serving.context, serving.dtype, tp=tp, block=serving.block)
    fit = budget // sum(kinds.values())
    count = serving.concurrency or max(fit, 1)
    longest = _longest(spec, serving, budget, tp)
    seconds = (_read(spec, weights, count) + count * sum(kinds.values())) / device.bandwidth
    return ServingPlan(weights, kinds, working, budget, count, fit, longest, count / seconds, seconds)


def _budget(device: Device, serving: ServingSpec, taken: int, tp: int) -> int:
    most = round(device.memory * serving.share)
    return max(most - taken - overhead(device, taken, tp).least, 0)


def _working(spec: DecoderSpec, serving: ServingSpec, itemsize: int) -> int:
    """A step's tokens: features between and inside layers, the widest at once; logits in fp32 of what is sampled."""
    widest = max(_width(spec, place) for place in range(spec.num_layers))
    logits = 2 * 4 * spec.vocab_size * min(serving.step_tokens, serving.concurrency or serving.step_tokens)
    return serving.step_tokens * (3 * spec.hidden_size + widest) * itemsize + logits


def _width(spec: DecoderSpec, place: int) -> int:
    """Features that a layer's feed-forward has of one token at once."""
    feed_forward = spec.blocks[place].feed_forward
    if isinstance(feed_forward, MoESpec):
        shared = feed_forward.shared.intermediate_size if feed_forward.shared else 0
        return 3 * (feed_forward.num_experts_per_tok * feed_forward.expert.intermediate_size + shared)
    return 3 * feed_forward.intermediate_size


def _read(spec: DecoderSpec, weights: int, count: int) -> float:
    """Bytes of weights that a step of `count` tokens reads: of experts those that some token has chosen, if all are
    chosen equally often; embeddings are looked up."""
    active, whole = spec.num_active_parameters(), spec.num_parameters()
    experts = whole - active
    table = 0 if spec.tie_embeddings else spec.vocab_size * spec.hidden_size
    met = 1.0
    if experts:
        mixture = next(b.feed_forward for b in spec.blocks if isinstance(b.feed_forward, MoESpec))
        share = mixture.num_experts_per_tok / mixture.num_experts
        missed = (1 - share) ** count
        all_experts = experts / (1 - share)
        met = (whole - table - all_experts * missed) / (whole - table)
    return weights * (whole - table) / whole * met


def _longest(spec: DecoderSpec, serving: ServingSpec, budget: int, tp: int) -> int:
    """The longest context that one sequence has room for."""
    low, high = 0, spec.context_limit
    while low < high:
        middle = (low + high + 1) // 2
        taken = cache_bytes(spec, middle, serving.dtype, tp=tp, block=serving.block)
        low, high = (middle, high) if taken <= budget else (low, middle - 1)
    return low
