"""The stage that plans: what pretraining this model on eight devices would take, by arithmetic."""

from typing import Any, Final

from intaglio.demo.stage import Desk, Found
from intaglio.lineage.resolve import resolve_spec
from intaglio.planning import plan
from intaglio.planning.speeds import Execution, assumptions
from intaglio.planning.step_time import step_time
from intaglio.specs import DecoderSpec

__all__ = ["GPUS", "plan_training_run"]

GPUS: Final = 8
_DEVICE: Final = "h100"
_TOKENS: Final = 2e12
"""Which the model was pretrained on (SmolLM2, arXiv:2502.02737, section 4.7)."""


def plan_training_run(desk: Desk) -> Found:
    """Memory of a rank, the time of a step, and the days that the model's own pretraining would take."""
    _, spec, _ = resolve_spec(desk.found["pull"]["path"])
    assert isinstance(spec, DecoderSpec)
    sequence = min(2048, spec.max_position_embeddings)
    asked: dict[str, Any] = {"job": "pretrain", "sequence": sequence, "micro_batch": 16, "device": _DEVICE}
    report = plan(spec, {"dp": GPUS, "zero": 1}, **asked)
    time = step_time(spec, report.plan.job, report.plan.layout, report.device, Execution(assumptions(report.device)))
    return {
        "device": report.device.title,
        "peak_bytes": report.plan.peak_bytes,
        "verdict": report.verdict,
        "step_seconds": time.seconds,
        "tokens_per_day": time.tokens_per_day,
        "days": _TOKENS / time.tokens_per_day,
        "mfu": time.mfu,
    }
