"""The same seams on SmolLM2, with the doors that other programs have: lm-eval through our API and on the weights, and
vLLM on the exported directory. For `make prove`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch

from intaglio.adapters.merge import merge_directories
from intaglio.adapters.models import load_model
from intaglio.checkpoints.load import load_directory
from intaglio.checkpoints.models import load_tokenizer
from intaglio.checkpoints.save import save_model
from intaglio.engine.llm import LLM
from intaglio.text.chat import render_chat
from seam_doors import (
    SMALL,
    Place,
    Rows,
    api,
    by_api,
    by_cache,
    by_engine,
    by_paged_steps,
    by_training,
    by_transformers,
    echoed,
    generated,
    make_adapter,
)
from served_model import served_model

pytestmark = [pytest.mark.prove, pytest.mark.real]

EVAL = Path(sys.prefix).parent / ".venv-eval" / "bin" / "python"
VLLM = Path(sys.prefix).parent / ".venv-vllm"
TEXTS = (
    "The history of the printing press begins in East Asia, where woodblocks",
    "The history of the printing press begins in Mainz",
    "def add(a, b):\n    return",
    "Naïve café — “quotes”, 漢字, 🙂:",
)
CHATS: dict[str, list[dict[str, str]]] = {
    "one question": [{"role": "user", "content": "  What is 2 + 2?\n"}],
    "two turns": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Capital of France?"},
        {"role": "assistant", "content": "Paris."},
        {"role": "user", "content": "And of 日本?"},
    ],
}
CLOSE = {"float32": 1e-4, "bfloat16": 0.5}
"""Nats, of one token. 30 layers of bf16, each product rounded in an order of its own."""
OUTSIDE = 1e-4
"""Nats, of one token in fp32, between programs that share no code with us."""

LM_EVAL = """
import json, sys
url, folder, asked = sys.argv[1:]
asked = json.load(open(asked))
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.models.huggingface import HFLM
base = dict(model="m", base_url=f"{url}/v1/completions", max_length=2048)
local = LocalCompletionsAPI(**base, tokenizer=folder, tokenizer_backend="huggingface", batch_size=3)
remote = LocalCompletionsAPI(**base, tokenizer_backend="remote")
weights = HFLM(pretrained=folder, dtype="float32", device="cpu")
requests = [(("", ""), row[:1], row[1:]) for row in asked["rows"]]
told = {
    "sums": {name: [one[0] for one in model._loglikelihood_tokens(requests)]
             for name, model in (("local", local), ("remote", remote), ("hf", weights))},
    "texts": {name: [list(model.tok_encode(text)) for text in asked["texts"]]
              for name, model in (("local", local), ("remote", remote), ("hf", weights))},
    "chats": {name: [list(model.tok_encode(model.apply_chat_template(chat))) for chat in asked["chats"]]
              for name, model in (("local", local), ("hf", weights))},
}
json.dump(told, open(asked["out"], "w"))
"""


def close(at: Place, found: list[list[float]], bound: float | None = None) -> None:
    """Asserts that each number is near the training forward's; `pytest -s` shows how near."""
    gaps = at.gaps(found)
    print(f"\n{at.dtype}: at most {max(gaps):.2e} nats apart, {np.mean(gaps):.2e} on average")
    assert max(gaps) <= (bound or CLOSE[at.dtype])


@pytest.fixture(scope="module", params=CLOSE)
def place(request: pytest.FixtureRequest, smollm2_dir: Path) -> Place:
    torch.set_num_threads(1)
    llm = LLM(smollm2_dir, dtype=request.param, config=SMALL)
    rows, made = generated(llm, llm.tokenizer.encode_batch(TEXTS), 5)
    assert llm.engine.stats().prefix_hits >= 4
    return Place(smollm2_dir, request.param, rows, made, by_training(load_directory(smollm2_dir, request.param), rows))


DOORS: dict[str, Callable[[Place], list[list[float]]]] = {
    "what the engine told while it made them": lambda at: at.made,
    "the cached forward": lambda at: by_cache(load_directory(at.folder, at.dtype), at.rows),
    "paged steps": lambda at: by_paged_steps(load_directory(at.folder, at.dtype), at.rows),
    "the paged engine": lambda at: by_engine(LLM(at.folder, dtype=at.dtype, config=SMALL).engine, at.rows),
    "the API": lambda at: by_api(at.folder, at.rows, at.dtype),
    "transformers": lambda at: by_transformers(at.folder, at.rows, at.dtype),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door(place: Place, door: str) -> None:
    close(place, DOORS[door](place))


def test_an_adapter_beside_merged_exported_and_at_the_api(place: Place, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"r": 4, "lora_alpha": 2, "target_modules": ("q_proj", "v_proj")}
    adapter = make_adapter(place.folder, tmp_path / "adapter", 1, **settings)
    model = load_model(place.folder, dtype=place.dtype, adapter=adapter)
    trained = place._replace(wanted=by_training(model, place.rows))
    assert np.abs(np.concatenate(trained.wanted) - np.concatenate(place.wanted)).mean() > 0.1
    close(trained, by_api(place.folder, place.rows, place.dtype, a=adapter))
    merge_directories(place.folder, adapter, tmp_path / "merged", dtype=place.dtype)
    close(trained, by_training(load_directory(tmp_path / "merged"), place.rows))
    close(trained, by_transformers(tmp_path / "merged", place.rows, place.dtype))


@pytest.fixture(scope="module")
def exact(smollm2_dir: Path) -> Place:
    """In fp32, for programs that would round elsewhere; texts of which no token was made here."""
    rows = load_tokenizer(smollm2_dir).encode_batch(TEXTS)
    return Place(smollm2_dir, "float32", rows, [], by_training(load_directory(smollm2_dir, "float32"), rows))


@pytest.fixture(scope="module")
def lm_eval(exact: Place, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What lm-eval makes of texts, conversations and ids: through our API, by either of its tokenizers, and on the
    weights themselves."""
    if not EVAL.exists():
        pytest.skip("no .venv-eval: run `make eval-env`")
    folder = tmp_path_factory.mktemp("lm_eval")
    out = folder / "out.json"
    asked = {"rows": exact.rows, "texts": list(TEXTS), "chats": list(CHATS.values()), "out": str(out)}
    (folder / "asked.json").write_text(json.dumps(asked))
    (folder / "ask.py").write_text(LM_EVAL)
    options = ("--served-model-name", "m", "--dtype", "float32", "--max-model-len", "2048")
    with served_model(exact.folder, *options, log=folder / "log") as server:
        command = [EVAL, folder / "ask.py", server.url, exact.folder, folder / "asked.json"]
        quiet = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        ran = subprocess.run(list(map(str, command)), env={**os.environ, **quiet}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    told: dict[str, Any] = json.loads(out.read_text())
    return told


def test_lm_eval_adds_up_the_same(exact: Place, lm_eval: dict[str, Any]) -> None:
    for name, sums in lm_eval["sums"].items():
        gaps = [abs(sum(row) - found) for row, found in zip(exact.wanted, sums, strict=True)]
        print(f"\n{name}: at most {max(gaps):.2e} nats apart, of {len(exact.rows[0])} tokens")
        assert max(gaps) <= OUTSIDE * max(map(len, exact.rows)), name


def test_lm_eval_reads_texts_and_chats_as_we_do(exact: Place, lm_eval: dict[str, Any]) -> None:
    assert lm_eval["texts"] == dict.fromkeys(("local", "remote", "hf"), exact.rows)
    tokenizer = load_tokenizer(exact.folder)
    ours = [render_chat(tokenizer, chat, add_generation_prompt=True).ids for chat in CHATS.values()]
    assert lm_eval["chats"] == {"local": ours, "hf": ours}


def test_vllm_on_the_export(exact: Place, tmp_path: Path) -> None:
    if not VLLM.is_dir():
        pytest.skip("no .venv-vllm: run `make vllm-env`")
    save_model(load_directory(exact.folder, "float32"), tmp_path / "export", load_tokenizer(exact.folder))
    options = ("--served-model-name", "m", "--dtype", "float32", "--max-model-len", "512", "--kv-memory", "1")
    with served_model(tmp_path / "export", *options, "--engine", "vllm", log=tmp_path / "log", patience=1200) as server:
        close(exact, _vllm(server.url, exact.rows), OUTSIDE)
        for chat in CHATS.values():
            body = {"model": "m", "messages": chat, "add_generation_prompt": True}
            told = httpx2.post(f"{server.url}/tokenize", json=body, timeout=60).json()["tokens"]
            assert told == render_chat(load_tokenizer(exact.folder), chat, add_generation_prompt=True).ids


def _vllm(url: str, rows: Rows) -> list[list[float]]:
    return api(httpx2.post(f"{url}/v1/completions", json=echoed(rows, "m"), timeout=600), rows)
