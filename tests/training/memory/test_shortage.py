"""Memory that runs out: the planner's figures are told, the run is as its last checkpoint left it, and goes on."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from intaglio.errors import UserError
from intaglio.lineage.resolve import resolve_spec
from intaglio.lineage.units import short_bytes
from intaglio.planning.changes import changes
from intaglio.planning.job_plan import JobPlan, plan_job
from intaglio.planning.jobs import JobSpec
from intaglio.planning.recipes import keys_of
from intaglio.specs import DecoderSpec, validate
from intaglio.specs.parallel import ParallelSpec
from intaglio.training.memory.planned import helpful, memory_plan
from intaglio.training.memory.shortage import explaining_shortage, is_shortage
from intaglio.training.recipe import Recipe, load_recipe
from intaglio.training.run import resume, train
from out_of_memory import ON_CUDA, on_cpu, on_cuda, short

LORA = {"r": 2, "target_modules": "all-linear"}
DRAWN = {"max_completion_length": 3, "rewards": [{"pattern": "a*"}]}
ROWS = {
    "texts": [{"text": "a good day " * (1 + i % 3) + str(i)} for i in range(30)],
    "pairs": [{"prompt": f"say {i}", "chosen": " yes" * (1 + i % 3), "rejected": " no"} for i in range(30)],
    "prompts": [{"prompt": f"the user says {i}"} for i in range(30)],
}


def recipe_of(folder: Path, toy: Path, data: str = "texts", **more: Any) -> Recipe:
    file = folder / f"{data}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS[data]), encoding="utf-8")
    plain = {
        "model": str(toy),
        "data": str(file),
        "validation": 0,
        "max_length": 48,
        "micro_batch": 4,
        "steps": 4,
        "precision": "float32",
        "save_every": 1,
        "evaluate_every": 0,
        "threads": 1,
    }
    recipe: Recipe = validate(Recipe, {**plain, **more}, "recipe")
    return recipe


def ended(recipe: Recipe, run: Path) -> str:
    """The one line of a run that finds too little memory."""
    with pytest.raises(UserError) as said:
        train(recipe, run, say=lambda line: None, quiet=True)
    assert "\n" not in str(said.value)
    return str(said.value)


def planned(recipe: Recipe, job: JobSpec, layout: ParallelSpec = ParallelSpec()) -> JobPlan:  # noqa: B008 (frozen)
    """By the planner alone."""
    assert recipe.model is not None
    spec = resolve_spec(recipe.model)[1]
    assert isinstance(spec, DecoderSpec)
    return plan_job(spec, job, layout, cpu=True)


def losses(run: Path) -> dict[int, float]:
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def test_the_planner_says_what_to_change_and_the_run_goes_on_so(toy_dir: Path, tmp_path: Path) -> None:
    recipe, run = recipe_of(tmp_path, toy_dir), tmp_path / "run"
    train(recipe, tmp_path / "whole", say=lambda line: None, quiet=True)
    with short(after=2 * 2 + 1):  # two layers a step; within the third
        said = ended(recipe, run)
    plan = planned(recipe, JobSpec(dtype="float32", sequence=48, micro_batch=4))
    best = changes(plan, cpu=True)[0]
    assert best.alike
    assert said.startswith("memory ran out after 2 steps (3638.0 TiB more were asked for); a step is planned to take ")
    assert f"take {short_bytes(plan.peak_bytes)}, " in said
    (key, value), *_ = keys_of(best.settings).items()
    assert f"; {key}={value} " in said or f"; {key}={value} gains" in said
    assert f"gains {short_bytes(best.gain)}" in said
    assert f"the last checkpoint is {run}/checkpoints/step-00000002" in said
    assert sorted(path.name for path in run.iterdir() if not path.name.startswith(".")) == [
        "checkpoints", "log.jsonl", "model", "recipe.yaml", "tokenizer",
    ]  # fmt: skip
    words = said.partition("go on with: intaglio train ")[2].split()
    assert (words[0], words[1], words[-1]) == (f"{run}/recipe.yaml", f"out={run}", "--go-on")
    assert resume(run, recipe=load_recipe(Path(words[0]), words[2:-1]), quiet=True, say=print).steps == 4
    assert losses(run) == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


def test_everything_that_only_saves_memory_may_change_in_a_run(toy_dir: Path, tmp_path: Path) -> None:
    recipe, run = recipe_of(tmp_path, toy_dir), tmp_path / "run"
    train(recipe, tmp_path / "whole", say=lambda line: None, quiet=True)
    with short(after=2 * 2):
        ended(recipe, run)
    saving = {
        "micro_batch": 2,
        "accumulation": 2,
        "checkpointing": 1,
        "objective": {"chunk": 16},
        "optimizer": {"kind": "paged_adamw"},
    }
    changed = validate(Recipe, {**recipe.plain(), **saving}, "recipe")
    resume(run, recipe=changed, quiet=True, say=print)
    assert losses(run) == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)
    ours, theirs = (load_file(one / "model" / "model.safetensors") for one in (run, tmp_path / "whole"))
    assert all(torch.allclose(ours[name], tensor, atol=1e-4) for name, tensor in theirs.items())
    with pytest.raises(UserError, match="has another recipe"):
        resume(run, recipe=recipe.updated(max_length=32))


@pytest.mark.parametrize(
    ("data", "more", "drawing", "job"),
    [
        ("texts", {"adapter": LORA}, False, {"job": "sft"}),
        ("texts", {"adapter": LORA, "quantization": {}}, False, {"job": "sft", "quantization": {}}),
        ("pairs", {"objective": {"kind": "dpo"}}, False, {"job": "dpo"}),
        ("prompts", {"objective": {"kind": "ppo", **DRAWN}}, True, {"job": "ppo", "reward_models": 0}),
    ],
    ids=["lora", "qlora", "dpo", "ppo, drawing"],
)
def test_every_kind_of_run_is_planned_as_it_is(
    toy_dir: Path, tmp_path: Path, data: str, more: dict[str, Any], drawing: bool, job: dict[str, Any]
) -> None:
    recipe, run = recipe_of(tmp_path, toy_dir, data, **more), tmp_path / "run"
    with short(after=0, fails=on_cuda, drawing=drawing):
        said = ended(recipe, run)
    wanted = JobSpec(
        dtype="float32", sequence=48, micro_batch=4, adapter=more.get("adapter"), **job
    )  # pydantic reads the adapter's plain data
    plan = planned(recipe, wanted)
    assert said.startswith("memory ran out before the first step was done (2.50 GiB more were asked for); ")
    assert f"planned to take {short_bytes(plan.peak_bytes)}, " in said
    gains = [one.gain for one in helpful(recipe, plan)]
    assert f"gains {short_bytes(gains[0])}" in said
    assert "there is no checkpoint yet" in said


def test_no_memory_for_the_model_itself_leaves_no_run(
    toy_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intaglio.training.start.load_model", lambda *args, **more: on_cpu())
    said = ended(recipe_of(tmp_path, toy_dir), tmp_path / "run")
    assert "before the first step was done" in said
    assert "--go-on" not in said
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_what_has_no_plan_is_told_the_usual(tmp_path: Path) -> None:
    recipe = recipe_of(
        tmp_path,
        Path("unused"),
        model=None,
        architecture={"kind": "recurrent", "embedding_size": 8, "hidden_size": 8, "cell": {"kind": "gru"}},
        tokenizer={"kind": "characters"},
        objective={"kind": "truncated_bptt"},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("intaglio.training.loop.Loop.step", lambda self: on_cpu())
        said = ended(recipe, tmp_path / "run")
    assert "checkpointing: 1 take less; there is no checkpoint yet" in said


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "the host ran out of memory after 3 steps; give it more, run fewer ranks on it"),
        (torch.OutOfMemoryError(ON_CUDA), "memory ran out after 3 steps (2.50 GiB more were asked for); a step is"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), "memory ran out after 3 steps; a step"),
    ],
)
def test_a_gpus_memory_is_not_the_hosts(toy_dir: Path, tmp_path: Path, error: Exception, words: str) -> None:
    recipe = recipe_of(tmp_path, toy_dir, device="cuda")
    assert recipe.model is not None
    spec = resolve_spec(recipe.model)[1]
    with pytest.raises(UserError) as said, explaining_shortage(recipe, tmp_path, lambda: spec, lambda: 3):
        raise error
    assert str(said.value).startswith(words)


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.OutOfMemoryError(ON_CUDA), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"), True),
        (RuntimeError("NCCL error: ncclUnhandledCudaError: Cuda failure 2 'out of memory'"), True),
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (RuntimeError("Connection closed by peer"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_a_shortage_is(error: Exception, is_one: bool) -> None:
    assert is_shortage(error) is is_one


def test_other_errors_pass(toy_dir: Path, tmp_path: Path) -> None:
    def broken() -> None:
        raise RuntimeError("something else")

    with short(after=0, fails=broken), pytest.raises(RuntimeError, match="something else"):
        train(recipe_of(tmp_path, toy_dir), tmp_path / "run", say=lambda line: None, quiet=True)


def test_only_what_the_recipe_may_have_is_offered(toy_dir: Path, tmp_path: Path) -> None:
    """A new adapter keeps its reference by being switched off, and kto needs two answers in a micro-batch."""
    recipe = recipe_of(tmp_path, toy_dir, "pairs", objective={"kind": "kto"}, micro_batch=2)
    assert recipe.model is not None
    spec = resolve_spec(recipe.model)[1]
    assert isinstance(spec, DecoderSpec)
    plan = memory_plan(recipe, spec)
    offered = [one.settings for one in helpful(recipe, plan)]
    assert any("micro_batch" in one.settings for one in changes(plan, cpu=True))
    assert not any("micro_batch" in one for one in offered)
    assert any("checkpointing" in one for one in offered)
