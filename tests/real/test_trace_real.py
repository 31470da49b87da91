"""Large models planned and traced: two depths at their real width, and what follows for all their layers, within 5 %.

`pytest -m prove -rP` shows each with its signed error and how it was traced.
"""

from typing import Any

import pytest

from intaglio.lineage.presets import preset
from intaglio.planning.jobs import JobSpec
from intaglio.planning.rank_plan import plan_rank
from intaglio.planning.shards import Rank
from intaglio.specs import DecoderSpec
from intaglio.specs.parallel import ParallelSpec
from intaglio.training.memory.trace import trace_job

pytestmark = pytest.mark.prove

LARGE: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "8B over 64": ("llama3.1-8b", {}, {"dp": 64, "zero": 3}),
    "8B over 64, layers computed again": ("llama3.1-8b", {"checkpointing": 1}, {"dp": 64, "zero": 3}),
    "8B over 64 at zero 2": ("llama3.1-8b", {"checkpointing": 1, "accumulation": 2}, {"dp": 64, "zero": 2}),
    "8B in stages of 4": ("llama3.1-8b", {"sequence": 4096, "accumulation": 8}, {"pp": 4}),
    "70B over 256": ("llama3.1-70b", {"checkpointing": 1}, {"dp": 256, "zero": 3}),
    "70B, 32 x 8": ("llama3.1-70b", {"checkpointing": "selective"}, {"dp": 32, "zero": 3, "tp": 8}),
    "405B, 64 x 8": ("llama3.1-405b", {"checkpointing": 1}, {"dp": 64, "zero": 3, "tp": 8}),
    "8B cut in 8": ("llama3.1-8b", {"sequence": 8192, "dtype": "float32"}, {"tp": 8}),
    "a mixture over 64": ("mixtral-8x7b", {"checkpointing": 1, "sequence": 4096}, {"dp": 64, "zero": 3}),
    "five local layers to one": ("gemma3-27b", {"checkpointing": 1, "sequence": 4096}, {"dp": 64, "zero": 3}),
}


@pytest.mark.parametrize(("model", "job", "layout"), LARGE.values(), ids=LARGE)
def test_large_models_take_what_is_planned(model: str, job: dict[str, Any], layout: dict[str, Any]) -> None:
    spec, wanted, parallel = (
        preset(model).spec,
        JobSpec(**{"sequence": 8192, **job}),
        ParallelSpec.model_validate(layout),
    )
    assert isinstance(spec, DecoderSpec)
    for stage in range(parallel.pp.ranks):
        plan = plan_rank(spec, wanted, parallel, Rank(pp=stage), cpu=True, native=False)
        trace = trace_job(spec, wanted, parallel, stage)
        error = plan.peak_bytes / trace.peak_bytes - 1
        print(
            f"{model}, {job}, {layout}, rank {stage}: planned {plan.peak_bytes / 2**30:.2f} GiB at {plan.peak.name}, "
            f"traced {trace.peak_bytes / 2**30:.2f} at {trace.peak} ({trace.depths} of {trace.layers}): {error:+.2%}"
        )
        assert abs(error) < 0.05
