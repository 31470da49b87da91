"""What a road costs, by arithmetic: memory by the closed forms of `planning`, time from FLOPs and bytes. No torch.

Reading and training are taken to be bound by products, at half of what the machine does at best; writing by the
weights, all of which every new token reads. They are good to a factor of two, and `measure` says what is true.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

from intaglio.advice.machine import Machine
from intaglio.advice.needs import Needs
from intaglio.advice.roads import Road
from intaglio.planning.training import plan_training
from intaglio.specs import DecoderSpec
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.quantization import QuantizationSpec

__all__ = ["PASSAGES", "SHOTS", "Costs", "costs_of"]

SHOTS: Final = 5
"""Examples in a prompt, where nobody has measured how many are best."""
PASSAGES: Final = 800
"""Tokens of the passages in a prompt; fewer where all documents have fewer."""

_EPOCHS: Final = 3
_STEP: Final = 1024
"""Tokens of a training step."""
_REACHED: Final = 0.5
"""Of the machine's speed in one large product."""
_BYTES: Final = 2
"""Of a weight, in bf16."""
_EMBEDDER: Final = 22_700_000
"""Parameters of the MiniLM that makes the vectors of an index, kept in fp32."""
_EMBEDDED: Final = 200 / (384 * 4)
"""Tokens of a passage for each byte of its vector."""


@dataclass(frozen=True)
class Costs:
    """What a road costs.

    Attributes:
        prompt_tokens: that the model reads for one request.
        training_bytes: at the peak of training; 0 where nothing trains.
        serving_bytes: while one request is answered.
        setup_seconds: once: training, and making the index.
        seconds: of one request.
        total_seconds: of all of it.
    """

    prompt_tokens: int
    training_bytes: int
    serving_bytes: int
    setup_seconds: float
    seconds: float
    total_seconds: float

    @property
    def peak_bytes(self) -> int:
        """The most at any time."""
        return max(self.training_bytes, self.serving_bytes)

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def costs_of(road: Road, needs: Needs, spec: DecoderSpec, machine: Machine) -> Costs:
    """The costs of a road on a machine."""
    prompt = _prompt_tokens(road, needs)
    context = min(prompt + needs.answer_tokens, spec.context_limit)
    speed = machine.flops * _REACHED
    reading = prompt * spec.flops_per_token(context) / speed
    seconds = reading + needs.answer_tokens * spec.num_active_parameters() * _BYTES / machine.bandwidth
    index = 2 * _EMBEDDER * needs.documents / speed if road.retrieval else 0.0
    setup = index + _training_flops(road, needs, spec, prompt) / speed
    serving = spec.num_parameters() * _BYTES + spec.kv_cache_bytes(context) + _index_bytes(road, needs)
    total = setup + needs.requests * seconds
    return Costs(prompt, _training_bytes(road, spec), serving, setup, seconds, total)


def _prompt_tokens(road: Road, needs: Needs) -> int:
    shots = SHOTS * (needs.question_tokens + needs.answer_tokens) if road.examples else 0
    passages = min(PASSAGES, needs.documents) if road.retrieval else 0
    return needs.question_tokens + shots + passages


def _training_flops(road: Road, needs: Needs, spec: DecoderSpec, prompt: int) -> float:
    """Forward, gradient of what goes in, and gradient of the weights where those train."""
    if road.training == "none":
        return 0.0
    row = prompt + needs.answer_tokens
    products = 3 if road.training == "full" else 2
    return products * spec.flops_per_token(min(row, spec.context_limit)) * row * needs.examples * _EPOCHS


def _training_bytes(road: Road, spec: DecoderSpec) -> int:
    tokens = min(_STEP, spec.context_limit)
    match road.training:
        case "none":
            return 0
        case "lora":
            return plan_training(spec, tokens, adapter=LoRASpec()).peak
        case "qlora":
            return plan_training(spec, tokens, adapter=LoRASpec(), quantization=QuantizationSpec()).peak
        case "full":
            return plan_training(spec, tokens).peak


def _index_bytes(road: Road, needs: Needs) -> int:
    """The embedding model, and a vector for each passage."""
    return 4 * _EMBEDDER + round(needs.documents / _EMBEDDED) if road.retrieval else 0
