"""`intaglio plan` as a user meets it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from intaglio.lineage import preset
from running import Run

RECIPES = Path(__file__).parents[2] / "recipes"


def data(run: Run, *words: object) -> Any:
    """What the command prints as JSON."""
    ended = run("plan", *words, "--json")
    assert ended.status == 0, ended
    return json.loads(ended.out)


def test_json_has_the_peak_and_what_it_is_made_of(run: Run) -> None:
    found = data(run, "llama3.1-8b", "--job", "dpo", "--adapter", "qlora", "--sequence", 2048, "--checkpointing", 1)
    assert found["peak_bytes"] == sum(found["components"].values())
    assert found["verdict"] == "fits"
    assert found["world"] == 1
    assert found["num_parameters"] == preset("llama3.1-8b").spec.num_parameters()
    assert {"weights", "adapters", "dequantized"} <= found["components"].keys() | found["moments"]["backward"][
        "components"
    ].keys()


def test_devices_that_are_left_read_other_data(run: Run) -> None:
    found = data(run, "llama3.1-8b", "--gpus", 16, "--tp", 2, "--accumulation", 4)
    assert found["parallel"] == {"dp": 8, "tp": 2, "zero": 3}
    stages = data(run, "llama3.1-8b", "--gpus", 8, "--pp", 4, "--schedule", "zbv_zero_bubble", "--accumulation", 8)
    assert stages["parallel"] == {"dp": 2, "zero": 1, "pp": {"ranks": 4, "schedule": "zbv_zero_bubble"}}
    assert [rank["rank"]["pp"] for rank in stages["ranks"]] == [0, 1, 2, 3]
    assert stages["peak_bytes"] == max(rank["peak_bytes"] for rank in stages["ranks"])


def test_more_sharing_takes_less(run: Run) -> None:
    peaks = [data(run, "llama3.1-8b", "--gpus", 8, "--zero", zero)["peak_bytes"] for zero in (0, 1, 2, 3)]
    assert peaks == sorted(peaks, reverse=True)


def test_a_table_for_people(run: Run) -> None:
    large = ("--gpus", 8, "--sequence", 8192, "--micro-batch", 4, "--price", 2)
    text = " ".join(run("plan", "llama3.1-8b", *large).out.split())
    assert "8 x NVIDIA H100 SXM 80 GB, 16.00 dollars an hour: dp 8, zero 3" in text
    assert "It does not fit" in text
    assert "What to change first" in text
    assert "checkpointing=1" in text
    assert "16 P / d" in text
    fits = run("plan", "llama3.1-8b", "--gpus", 64, "--checkpointing", "selective").out
    assert "It fits" in fits
    assert "What to change first" not in fits


def test_serving(run: Run) -> None:
    found = data(run, "llama3.1-8b", "--job", "serve", "--sequence", 8192, "--concurrency", 4)
    assert found["concurrency"] == 4 < found["largest_concurrency"]
    assert found["components"]["kv cache: full"] == 4 * 8192 * 2 * 8 * 128 * 2 * 32
    assert found["peak_bytes"] == sum(found["components"].values())
    text = run("plan", "gemma3-12b", "--job", "serve").out
    assert "kv cache: window 1024" in text
    assert "tokens a second of all, at most" in text
    crowded = run("plan", "llama3.1-70b", "--job", "serve").out
    assert "It does not fit" in crowded


@pytest.mark.parametrize(("name", "job"), [
    ("dpo-smollm2", "dpo"), ("grpo-smollm2", "grpo"), ("qlora-smollm2", "sft"), ("sft-smollm2", "sft"),
])  # fmt: skip
def test_a_recipe_is_read(run: Run, tmp_path: Path, name: str, job: str) -> None:
    text = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8")
    file = tmp_path / f"{name}.yaml"
    file.write_text(text.replace("model: smollm2-135m-instruct", "model: smollm2-135m"), encoding="utf-8")
    found = data(run, file)
    assert found["job"].get("job", "sft") == job
    if name == "qlora-smollm2":
        assert found["job"]["quantization"] is not None
        assert found["host_bytes"] > 0  # paged moments


def test_a_recipes_layout_and_what_changes_it(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "many.yaml"
    file.write_text(
        "model: smollm2-135m\nmax_length: 256\nmicro_batch: 2\naccumulation: 4\nsteps: 3\ndata: rows.jsonl\n"
        "objective: {kind: dpo, reference: copy}\nparallel: {dp: 2, zero: 1, pp: 2}\n",
        encoding="utf-8",
    )
    found = data(run, file)
    assert found["parallel"] == {"dp": 2, "zero": 1, "pp": {"ranks": 2}}
    assert found["job"] == {"job": "dpo", "sequence": 256, "micro_batch": 2, "accumulation": 4, "reference": "model"}
    assert data(run, file, "--sequence", 128)["job"]["sequence"] == 128
    assert data(run, file, "--pp", 3)["parallel"]["pp"] == {"ranks": 3}


def test_a_bar_is_drawn(run: Run, tmp_path: Path) -> None:
    for words in (("--gpus", 8), ("--job", "serve")):
        file = tmp_path / f"{words[0]}.png"
        assert run("plan", "smollm2-135m", *words, "--plot", file).status == 0
        assert file.read_bytes().startswith(b"\x89PNG")


def test_devices_of_ones_own(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "devices.yaml"
    file.write_text("toy: {memory: 2, bandwidth: 10, bf16: 1, fp32: 1, link: 1, network: 1}\n", encoding="utf-8")
    found = data(run, "smollm2-135m", "--device", "toy", "--device-file", file)
    assert found["verdict"] == "too much"
    assert found["device"]["memory_bytes"] == 2 << 30
    assert data(run, "smollm2-135m", "--device", "here")["device"]["title"] == "this machine"


@pytest.mark.parametrize(("words", "said"), [
    (("llama3.1-8b", "--tp", 3), "tp 3 does not divide the model's query heads (32)"),
    (("llama3.1-8b", "--gpus", 6, "--tp", 4), "6 devices are no multiple of tp 4"),
    (("llama3.1-8b", "--pp", 64, "--accumulation", 64), "64 stages, and the model has 32 layers"),
    (("llama3.1-8b", "--ep", 2, "--gpus", 2), "no experts to spread"),
    (("llama3.1-8b", "--sequence", -5), "sequence: Input should be greater than 1"),
    (("llama3.1-8b", "--micro-batch", 0), "micro_batch: Input should be greater than 0"),
    (("llama3.1-8b", "--sequence", 10**6), "where the model takes 131072"),
    (("llama3.1-8b", "--zero", 2, "--pp", 2, "--gpus", 4), "take zero 0 or 1 with pp"),
    (("llama3.1-8b", "--checkpointing", "some"), "'some' is no way to checkpoint"),
    (("llama3.1-8b", "--device", "h1000"), "unknown device 'h1000'; did you mean h100"),
    (("llama3.1-8b", "--price", -1), "price"),
    (("llama3.1-8b", "--offload"), "take zero 2 or 3"),
    (("llama3.1-8b", "--rank", 4), "say --adapter lora or qlora"),
    (("llama3.1-8b", "--adapter", "qlora", "--tp", 2), "4-bit weights"),
    (("llama3.1-8b", "--concurrency", 4), "say --job serve"),
    (("llama3.1-8b", "--job", "serve", "--micro-batch", 4), "means nothing to serving"),
    (("llama3.1-8b", "--job", "dance"), "dance"),
    (("llama3.1-8b", "--sequences", 8), "say --fit"),
    (("llama3.1-8b", "--job", "serve", "--fit"), "means nothing to serving"),
    (("llama3.1-8b", "--timeline", "never.svg"), "say --pp 2"),
    (("mixtral-8x7b", "--gpus", 8, "--ep", 2, "--hsdp", 2), "experts are spread over all of dp"),
    (("lama3-8b",), "did you mean llama3-8b"),
    (("lstm",), "name a decoder-only model"),
    ((RECIPES / "three-stages.yaml",), "a recipe of several stages"),
    ((RECIPES / "pretrain-stdlib.yaml",), "nobody knows its size"),
    ((RECIPES / "tagger-bilstm.yaml",), "tagger"),
])  # fmt: skip
def test_a_mistake_is_one_line(run: Run, words: tuple[object, ...], said: str) -> None:
    assert said in run("plan", *words).refusal


def test_a_recipe_with_a_mistake_names_its_key(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    for line, said in (
        ("parallel: {zerro: 1}", "unknown key 'parallel.zerro'; did you mean zero"),
        ("micro_batch: -2", "micro_batch"),
        ("objective: {kind: dpoo}", "did you mean dpo"),
        ("adapter: {from: somewhere}", "goes on with an adapter"),
    ):
        file.write_text(f"model: smollm2-135m\ndata: rows.jsonl\n{line}\n", encoding="utf-8")
        assert said in run("plan", file).refusal
    file.write_text("data: rows.jsonl\n", encoding="utf-8")
    assert "neither model nor architecture" in run("plan", file).refusal


def test_no_torch_is_loaded() -> None:
    code = (
        "import sys; sys.argv = ['intaglio', 'plan', 'llama3.1-70b', '--gpus', '64', '--tp', '8', '--json']\n"
        "from intaglio.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ended.stderr.strip() == "False"
    assert json.loads(ended.stdout)["world"] == 64
