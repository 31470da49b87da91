"""`intaglio plan --trace` as a user meets it."""

import json

import pytest

from intaglio.lineage.presets import preset
from intaglio.planning.job_plan import plan_job
from intaglio.planning.jobs import JobSpec
from intaglio.specs import DecoderSpec
from intaglio.specs.parallel import ParallelSpec
from running import Run

WORDS = ("plan", "smollm2-135m", "--gpus", 2, "--sequence", 512, "--checkpointing", 1, "--trace")


def test_both_numbers_are_told(run: Run) -> None:
    spec, job = preset("smollm2-135m").spec, JobSpec(sequence=512, checkpointing=1)
    assert isinstance(spec, DecoderSpec)
    plan = plan_job(spec, job, ParallelSpec(dp=2, zero=3), cpu=True, native=False)
    found = json.loads(run(*WORDS, "--json").out)["trace"]
    assert found["arithmetic"]["peak_bytes"] == plan.peak_bytes
    assert found["engine"]["extrapolated"] is True
    assert found["engine"]["traced_layers"] == [3, 5]
    assert found["error"] == plan.peak_bytes / found["engine"]["peak_bytes"] - 1
    assert abs(found["error"]) < 0.03
    assert sum(row["engine"] for row in found["components"].values()) == found["engine"]["peak_bytes"]
    assert found["moments"].keys() == {"loss", "backward", "embedding", "optimizer"}


def test_people_see_both_and_what_was_left_out(run: Run) -> None:
    ended = run("plan", "smollm2-135m", "--sequence", 512, "--trace")
    assert ended.status == 0, ended
    said = " ".join(ended.out.split())
    assert "3 and 5 of 30 layers, the rest follows" in said
    assert "component arithmetic engine error" in said
    assert "moment of a step arithmetic engine error" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--job", "serve"), "means nothing to serving"),
        (("--job", "dpo"), "dpo needs answers"),
        (("--fit", "--gpus", "2"), "traces one layout's memory"),
        (("--optimizer", "paged_adamw"), "sees one memory"),
    ],
)
def test_one_line_where_there_is_no_trace(run: Run, words: tuple[str, ...], said: str) -> None:
    ended = run("plan", "smollm2-135m", *words, "--trace")
    assert ended.status == 2
    assert said in ended.err
    assert len(ended.err.strip().splitlines()) == 1
