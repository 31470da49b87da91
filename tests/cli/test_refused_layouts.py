"""What ranks cannot share is refused in one line, and in the same words wherever it is asked for."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from running import Run

DRAWN = {"max_completion_length": 3, "rewards": [{"pattern": "a*"}]}
PPO = {"kind": "ppo", **DRAWN}
LORA = {"r": 2}
ALLOWED: list[dict[str, Any]] = [
    {"parallel": {"tp": 2, "sequence_parallel": False}, "neftune": 5.0},
    {"parallel": {"dp": 2}, "compile": True},
    {"parallel": {"dp": 2}, "optimizer": {"kind": "muon"}},
    {"parallel": {"cp": 2}, "objective": {"kind": "dpo"}},
    {"parallel": {"pp": 2}, "accumulation": 2, "compile": True},
    {"parallel": {"pp": 2}, "objective": {"kind": "dpo", "reference": "precomputed"}, "adapter": LORA},
    {"parallel": {"tp": 2}, "adapter": {"use_dora": True, "target_modules": ["q_proj"]}},
    {"parallel": {"dp": 2, "zero": 3}, "adapter": LORA, "quantization": {}},
]
OF_LAYOUT: list[tuple[dict[str, Any], str]] = [
    ({"dp": -2}, "dp: Input should be greater than 0"),
    ({"tp": 0}, "tp: Input should be greater than 0"),
    ({"dp": 2, "zerro": 1}, "did you mean zero"),
    ({"pp": {"ranks": 2, "schedul": "1f1b"}}, "did you mean schedule"),
    ({"dp": 2, "zero": 4}, "zero: Input should be 0, 1, 2 or 3"),
    ({"dp": 4, "hsdp": 3, "zero": 1}, "hsdp 3 does not divide dp 4"),
    ({"dp": 4, "hsdp": 2}, "zero 0 has none"),
    ({"dp": 4, "ep": 3}, "ep 3 does not divide dp 4"),
    ({"dp": 4, "ep": 2, "zero": 1, "hsdp": 2}, "leave hsdp or ep out"),
    ({"pp": 2, "dp": 2, "zero": 2}, "take zero 0 or 1 with pp"),
    ({"pp": 2, "cp": 2}, "not yet with ep or cp"),
    ({"pp": 2, "dp": 2, "ep": 2}, "not yet with ep or cp"),
    ({"dp": 2, "offload": True}, "take zero 2 or 3"),
    ({"pp": {"ranks": 2, "chunks": 2}}, "one chunk"),
]
OF_TRAINING: list[tuple[dict[str, Any], str]] = [
    *(
        ({"parallel": {"dp": 2, "zero": zero}, "optimizer": {"kind": kind}}, f"zero: {kind} steps whole matrices")
        for zero, kind in ((1, "muon"), (2, "paged_adamw"), (3, "muon"))
    ),
    ({"parallel": {"dp": 2, "zero": 1}, "compile": True}, "zero: compile wants weights that stay"),
    ({"parallel": {"dp": 2, "zero": 1}, "objective": {**PPO, "ptx": {"data": "texts"}}}, "zero: objective.ptx reads"),
    ({"parallel": {"tp": 2}, "compile": True}, "tp: compile knows no parts that tp cuts"),
    ({"parallel": {"dp": 2, "ep": 2}, "compile": True}, "ep: compile knows no parts that ep cuts"),
    ({"parallel": {"cp": 2}, "compile": True}, "cp: compile knows no parts that cp cuts"),
    ({"parallel": {"tp": 2}, "neftune": 5.0}, "or take sequence_parallel: false"),
    ({"parallel": {"cp": 2}, "neftune": 5.0}, "cp: neftune adds noise to whole documents"),
    ({"parallel": {"tp": 2}, "adapter": LORA, "quantization": {}}, "tp: 4-bit weights lie in blocks"),
    ({"parallel": {"dp": 2, "ep": 2}, "adapter": LORA, "quantization": {}}, "ep: 4-bit weights lie in blocks"),
    ({"parallel": {"cp": 2, "cp_method": "all_gather"}, "objective": {"kind": "dpo"}}, "those of dpo fork"),
    ({"parallel": {"pp": 2}, "objective": PPO}, "pp: ppo asks the whole model between its steps; take dp"),
    ({"parallel": {"pp": 2}, "objective": {"kind": "grpo", "num_generations": 4, **DRAWN}}, "pp: grpo asks the whole"),
    ({"parallel": {"pp": 2}, "objective": {"kind": "kto"}}, "pp: kto asks the whole model"),
    ({"parallel": {"pp": 2}, "objective": {"kind": "dpo"}, "adapter": LORA}, "pp: no stage can ask the model below"),
    ({"parallel": {"pp": 2}, "neftune": 5.0}, "pp: neftune is added where the loss is"),
    ({"parallel": {"pp": {"ranks": 2, "schedule": "zbv_zero_bubble"}}, "compile": True}, "compile does not"),
    ({"parallel": {"pp": {"ranks": 2, "micro_batches": 8}}}, "pp: 8 micro-batches, and a step has accumulation 4"),
    ({"parallel": {"pp": 8}}, "4 micro-batches for 1f1b over 8 ranks"),
]
OF_MODEL: list[tuple[dict[str, Any], str]] = [
    ({"parallel": {"tp": 3}}, "tp: tp 3 does not divide the model's query heads (4)"),
    ({"parallel": {"cp": 4}}, "cp: cp 4 does not divide the model's key/value heads (2)"),
    ({"parallel": {"dp": 2, "ep": 2}}, "ep: the model has no experts to spread"),
    ({"parallel": {"tp": 2}, "adapter": {"use_dora": True}}, "tp: DoRA needs whole columns"),
    ({"parallel": {"tp": 2}, "adapter": {"target_modules": ["q_proj", "lm_head"]}}, "an adapter on lm_head cannot be"),
    ({"parallel": {"pp": 4}}, "4 stages, and the model has 2 layers"),
]


def file_of(tmp_path: Path, toy_dir: Path, fields: dict[str, Any]) -> Path:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a good day"}\n', encoding="utf-8")
    plain = {"model": str(toy_dir), "data": str(rows), "steps": 2, "accumulation": 4, "max_length": 64, **fields}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(plain), encoding="utf-8")
    return tmp_path / "recipe.yaml"


@pytest.mark.parametrize("fields", ALLOWED, ids=str)
def test_what_is_next_to_it_is_not_refused(run: Run, tmp_path: Path, toy_dir: Path, fields: dict[str, Any]) -> None:
    ran = run("plan", file_of(tmp_path, toy_dir, fields), "--json")
    assert ran.status == 0, ran.err
    said = run("train", file_of(tmp_path, toy_dir, fields), f"out={tmp_path / 'run'}").refusal
    assert "parallel: the layout is for 2 processes" in said  # and it is the first thing that is wrong


@pytest.mark.parametrize(("layout", "words"), OF_LAYOUT, ids=str)
def test_layouts_that_there_are_not(
    run: Run, tmp_path: Path, toy_dir: Path, layout: dict[str, Any], words: str
) -> None:
    file = file_of(tmp_path, toy_dir, {"parallel": layout})
    for command in (("plan", file), ("train", file, f"out={tmp_path / 'run'}"), ("launch", file, "out=run")):
        said = run(*command).refusal
        assert words in said
        assert f"{file}" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("fields", "words"), OF_TRAINING, ids=str)
def test_training_that_a_layout_does_not_allow(
    run: Run, tmp_path: Path, toy_dir: Path, fields: dict[str, Any], words: str
) -> None:
    file = file_of(tmp_path, toy_dir, fields)
    for command in (("plan", file), ("train", file, "--dry-run"), ("train", file, f"out={tmp_path / 'run'}")):
        assert words in run(*command).refusal, command
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("fields", "words"), OF_MODEL, ids=str)
def test_models_that_a_layout_does_not_divide(
    run: Run, tmp_path: Path, toy_dir: Path, fields: dict[str, Any], words: str
) -> None:
    file = file_of(tmp_path, toy_dir, fields)
    assert words in run("plan", file).refusal
    ended = run("train", file, "--dry-run")
    assert ended.status == 2
    assert words in ended.err
    assert ended.err.count("\n") == 1


def test_options_are_asked_the_same(run: Run) -> None:
    for words, said in (
        (("--job", "ppo", "--gpus", 2, "--pp", 2), "ppo asks the whole model"),
        (("--gpus", 2, "--zero", 1, "--optimizer", "muon"), "muon steps whole matrices"),
        (("--gpus", 4, "--pp", 2, "--cp", 2), "not yet with ep or cp"),
        (("--tp", 0), "--tp"),
        (("--gpus", -4), "--gpus"),
        (("--zero", 4), "--zero"),
    ):
        assert said in run("plan", "llama3.1-8b", *words).refusal


def test_a_search_passes_over_what_is_refused(run: Run) -> None:
    ran = run("plan", "smollm2-135m", "--job", "kto", "--gpus", 4, "--sequence", 512, "--fit", "--pp", 2)
    assert "no layout of 4 devices" in ran.refusal


def test_several_stages_are_for_one_process(
    run: Run, tmp_path: Path, toy_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of(tmp_path, toy_dir, {})
    stages = tmp_path / "stages.yaml"
    plain = yaml.safe_load(file.read_text(encoding="utf-8"))
    stages.write_text(yaml.safe_dump({"stages": {"one": {**plain, "parallel": {"dp": 2}}}}), encoding="utf-8")
    said = run("train", stages, f"out={tmp_path / 'run'}").refusal
    assert f"{stages}: one: parallel: the layout is for 2 processes, and stages are run by one" in said
    assert "several recipes" in run("launch", stages, "out=run").refusal
    stages.write_text(yaml.safe_dump({"stages": {"one": plain}}), encoding="utf-8")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "stages are run by one process, and there are 2" in run("train", stages, f"out={tmp_path / 'run'}").refusal
    assert not (tmp_path / "run").exists()
