"""`intaglio demo --quick` on the real model: it ends, and its numbers are those of what lies in its folder."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from intaglio.lineage.resolve import resolve_spec
from intaglio.planning import plan
from shared_cache import shared_home

pytestmark = [pytest.mark.real, pytest.mark.prove]


@pytest.fixture(scope="module")
def demo(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("demo") / "life"
    command = [sys.executable, "-m", "intaglio.cli.main", "demo", "--quick", "--json", "--out", str(folder)]
    environment = {**os.environ, "INTAGLIO_HOME": str(shared_home())}  # a fixture of the module comes before `home`
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
    return folder, json.loads(ran.stdout)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_it_keeps_its_time(demo: tuple[Path, dict[str, Any]]) -> None:
    assert sum(row["seconds"] for row in demo[1]["table"]) < 300


def test_right_answers_are_those_of_the_items(demo: tuple[Path, dict[str, Any]]) -> None:
    folder, told = demo
    for stage in ("before", "after"):
        items = lines(folder / stage / "eval" / "items.jsonl")
        right = [
            item["nats"].index(max(item["nats"])) == ["sarcastic", "serious"].index(*item["right"]) for item in items
        ]
        assert told["stages"][stage]["score"]["mean"] == pytest.approx(sum(right) / len(right))


def test_the_gain_is_the_difference_and_the_table_reads_the_stages(demo: tuple[Path, dict[str, Any]]) -> None:
    told = demo[1]
    stages = told["stages"]
    before, after = (stages[stage]["score"]["mean"] for stage in ("before", "after"))
    gain = stages["after"]["gain"]
    assert gain["difference"] == pytest.approx(after - before)
    assert gain["low"] <= gain["difference"] <= gain["high"]
    table = {row["name"]: row["value"] for row in told["table"]}
    load = stages["load"]
    assert table["load"] == pytest.approx(load["output_tokens"] / load["duration_s"])
    assert load["output_tokens"] == 32 * (load["requests"] - load["failed"])
    assert table["serve"] == stages["serve"]["turns"][0]["first_token_s"] > 0
    assert table["after"] == after
    assert table["plan"] == stages["plan"]["tokens_per_day"] / 1e9
    *_, last = lines(Path(told["leaderboard"]))
    assert last["scores"] == table


def test_a_merged_matrix_is_the_base_and_what_the_adapter_adds(demo: tuple[Path, dict[str, Any]]) -> None:
    folder, told = demo
    name, tuned = "model.layers.3.mlp.down_proj", Path(told["stages"]["tune"]["path"])
    base, merged = (
        load_file(path / "model.safetensors")[f"{name}.weight"].double()
        for path in (tuned, Path(told["stages"]["merge"]["path"]))
    )
    adapter = load_file(folder / "prefer" / "run" / "adapter" / "adapter_model.safetensors")
    a, b = (adapter[f"base_model.model.{name}.lora_{which}.weight"].double() for which in "AB")
    expected = base + 32 / 16 * b @ a
    torch.testing.assert_close(merged, expected, rtol=2.0**-8, atol=0)  # what bf16 rounds
    assert not torch.allclose(base, expected, rtol=2.0**-8, atol=0)
    assert told["stages"]["merge"]["same_choice"] > 0.9


def test_bits_and_pairs_are_those_of_the_logs(demo: tuple[Path, dict[str, Any]]) -> None:
    folder, told = demo
    *_, last = (line for line in lines(folder / "pretrain" / "run" / "log.jsonl") if "eval_loss" in line)
    assert told["stages"]["pretrain"]["bits_per_byte"] == last["eval_bits_per_byte"] < last["eval_loss"] / math.log(2)
    *_, tuned = (line for line in lines(folder / "tune" / "run" / "log.jsonl") if "eval_loss" in line)
    assert told["stages"]["tune"]["eval_loss"] == tuned["eval_loss"]
    report = json.loads((folder / "prefer" / "run" / "report.json").read_text("utf-8"))
    better = [margin > 0 for margin in report["margins_after"]]
    assert told["stages"]["prefer"]["after"]["accuracy"] == pytest.approx(sum(better) / len(better))


def test_the_plan_is_the_planners(demo: tuple[Path, dict[str, Any]], smollm2_dir: Path) -> None:
    _, spec, _ = resolve_spec(str(smollm2_dir))
    job = {"job": "pretrain", "sequence": 2048, "micro_batch": 16, "device": "h100"}
    assert demo[1]["stages"]["plan"]["peak_bytes"] == plan(spec, {"dp": 8, "zero": 1}, **job).plan.peak_bytes  # type: ignore[arg-type]
