"""EvalScope and lm-evaluation-harness, unmodified, against `intaglio serve` with SmolLM2: for `make prove`.

They live in an environment of their own, which `make eval-env` makes.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from served_model import Served, served_model

pytestmark = [pytest.mark.prove, pytest.mark.real]

EVAL = Path(__file__).parents[2] / ".venv-eval" / "bin"
NAME = "smollm2-135m-instruct"
QUESTIONS = [
    ("The capital of France is", [" Paris", " London", " Rome"], 0),
    ("Two plus two equals", [" five", " four", " nine"], 1),
    ("The opposite of hot is", [" cold", " warm", " red"], 0),
    ("Water freezes at zero degrees", [" Celsius", " of freedom", " Kelvin"], 0),
    ("A dog is an", [" plant", " animal", " number"], 1),
    ("Naïve café — “quotes”, 漢字, 🙂:", [" fine", " 漢字", " 🙂"], 0),
    ("def add(a, b):\n    return", [" a + b", " a - b", " None"], 0),
    ("The sun rises in the", [" west", " north", " east"], 2),
]
"""What both backends must find equally likely; right or wrong does not matter."""

TASK = """
task: small_choices
dataset_path: json
dataset_kwargs:
  data_files: {{test: {file}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
"""


@pytest.fixture(scope="module")
def server(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    if not EVAL.is_dir():
        pytest.skip("no .venv-eval: run `make eval-env`")
    log = tmp_path_factory.mktemp("served") / "log"
    options = ("--served-model-name", NAME, "--dtype", "float32", "--max-model-len", "2048")
    with served_model(smollm2_dir, *options, log=log) as server:
        yield server


def run(command: list[Any], folder: Path, **environment: str) -> str:
    """A program of the evaluators' environment; fails with what it said."""
    ran = subprocess.run(
        [str(EVAL / command[0]), *map(str, command[1:])],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2", **environment},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    return ran.stdout + ran.stderr


def test_evalscope_perf(server: Served, smollm2_dir: Path, tmp_path: Path) -> None:
    command: list[Any] = [
        "evalscope",
        "perf",
        "--url",
        f"{server.url}/v1/chat/completions",
        "--model",
        NAME,
        "--api",
        "openai",
    ]
    command += ["--dataset", "random", "--tokenizer-path", smollm2_dir, "--parallel", 4, "--number", 8, "--stream"]
    command += ["--min-prompt-length", 30, "--max-prompt-length", 60, "--min-tokens", 16, "--max-tokens", 16]
    command += ["--extra-args", '{"ignore_eos": true}', "--outputs-dir", tmp_path / "out"]
    run(command, tmp_path)
    (file,) = (tmp_path / "out").rglob("benchmark_summary.json")
    found = json.loads(file.read_text())
    numbers = {name.lower(): value for name, value in found.items()}
    assert any(value == 8 for name, value in numbers.items() if "succe" in name), found
    assert all(value == 0 for name, value in numbers.items() if "failed" in name), found
    made = [value for name, value in numbers.items() if "output tokens" in name]
    assert made == [pytest.approx(16)], found


def samples(folder: Path) -> list[list[float]]:
    """The log-likelihood of each choice of each question, in order."""
    (file,) = folder.rglob("samples_small_choices_*.jsonl")
    rows = sorted(map(json.loads, file.read_text().splitlines()), key=lambda row: row["doc_id"])
    return [
        [float(answer[0][0] if isinstance(answer[0], list) else answer[0]) for answer in row["resps"]] for row in rows
    ]


def test_lm_eval_finds_the_same_likelihoods_as_with_the_weights_themselves(
    server: Served, smollm2_dir: Path, tmp_path: Path
) -> None:
    rows = [json.dumps({"question": q, "choices": c, "answer": a}) for q, c, a in QUESTIONS]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "small_choices.yaml").write_text(TASK.format(file=tmp_path / "rows.jsonl"))
    ours = f"model={NAME},base_url={server.url}/v1/completions,tokenizer={smollm2_dir},num_concurrent=4,max_length=2048"
    models = {"local-completions": ours, "hf": f"pretrained={smollm2_dir},dtype=float32"}
    found = {}
    for model, arguments in models.items():
        command: list[Any] = ["lm_eval", "--model", model, "--model_args", arguments, "--tasks", "small_choices"]
        command += [
            "--include_path",
            tasks,
            "--log_samples",
            "--output_path",
            tmp_path / model,
            "--batch_size",
            1,
            "--device",
            "cpu",
        ]
        run(command, tmp_path, HF_HOME=str(tmp_path / "hf"))
        found[model] = samples(tmp_path / model)
    assert len(found["hf"]) == len(QUESTIONS)
    for own, theirs in zip(found["local-completions"], found["hf"], strict=True):
        assert own == pytest.approx(theirs, abs=1e-3)


@pytest.mark.parametrize("prompt", [[504, 3575, 282, 4649, 314, 2], [1, 2, 2], [2], [504, 2, 504]])
def test_echo_always_has_an_entry_for_every_token(server: Served, prompt: list[int]) -> None:  # case 22
    """lm-eval cuts the answer's own token off the end: where it was left out, the last token of the text is lost."""
    body = {"prompt": prompt, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0, "seed": 1234}
    answer = httpx2.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
    told = answer["choices"][0]["logprobs"]
    assert len(told["token_logprobs"]) == len(told["top_logprobs"]) == len(told["tokens"]) == len(prompt) + 1
    assert told["token_logprobs"][0] is None
    assert all(top for top in told["top_logprobs"][1:])
