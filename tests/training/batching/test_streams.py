"""Streamed data: held out by hash, the same rows in the same order, and resumed bit for bit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from intaglio.data import encoding
from intaglio.data.encoding import Encoder
from intaglio.data.splitting import held_out
from intaglio.data.store import Store
from intaglio.data.streaming import Streamed
from intaglio.errors import UserError
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.batching.batches import BatchStream
from intaglio.training.batching.streams import WithoutHeldOut, first_held_out
from intaglio.training.log import Log
from intaglio.training.loop import Step
from intaglio.training.recipe import load_recipe
from intaglio.training.run import resume, train
from tiny_specs import block
from toy_tokenizers import byte_level

WORDS = "the sea takes what the river brings and gives it back as rain over every hill and field".split()


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows that come in five windows, in this process."""
    monkeypatch.setattr(encoding, "_CHUNK", 60)
    monkeypatch.setattr(encoding, "_IN_PROCESS", 10**6)
    texts = [" ".join(WORDS[(i * k) % len(WORDS)] for k in range(3, 14 + i % 9)) for i in range(90)]
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"text": f"{i} {text}"}) + "\n" for i, text in enumerate(texts)), encoding="utf-8"
    )
    return path


def streamed(rows: Path) -> Streamed:
    tokenizer = Tokenizer(byte_level(), {"eos_token": "<|endoftext|>"})
    return Streamed(rows, Encoder(tokenizer, max_length=120), workers=1)


def texts(store: Store) -> set[bytes]:
    return {store[i].ids.tobytes() for i in range(len(store))}


def test_what_is_held_out_is_never_trained_on(rows: Path) -> None:
    source = streamed(rows)
    everything = [*source.windows(0, seed=0)]
    outside = {one.ids.tobytes() for store in everything for one in _picked(store, 0.2)}
    trained = set().union(*map(texts, WithoutHeldOut(source, 0.2).windows(0, seed=0)))
    assert len(everything) > 3
    assert len(outside) > 5
    assert not outside & trained
    assert outside | trained == set().union(*map(texts, everything))
    measured = texts(first_held_out(source, 0.2))
    assert measured == outside & texts(everything[0])


def _picked(store: Store, share: float) -> list[Any]:
    return [store[int(i)] for i in np.flatnonzero(held_out(store, share))]


def test_a_first_window_that_holds_nothing_out_says_so(rows: Path) -> None:
    assert len(first_held_out(streamed(rows), 0.0)) == 0
    with pytest.raises(UserError, match="holds nothing out"):
        first_held_out(streamed(rows), 1e-6)


def test_the_same_rows_in_the_same_order_twice(rows: Path) -> None:
    one, other = (BatchStream(WithoutHeldOut(streamed(rows), 0.1), 2, 120, seed=3) for _ in range(2))
    read = [[batch.wheres for batch in stream.step(40)] for stream in (one, other)]
    assert read[0] == read[1]
    assert one.epoch >= 1


def recipe_of(rows: Path, *changes: str) -> Any:
    data = {
        "architecture": {
            "hidden_size": 16,
            "max_position_embeddings": 64,
            "layers": [block(attention={"num_heads": 2})],
        },
        "tokenizer": {"vocab_size": 300},
        "data": str(rows),
        "streaming": True,
        "validation": 0.2,
        "max_length": 64,
        "micro_batch": 2,
        "steps": 24,
        "evaluate_every": 8,
        "save_every": 4,
        "threads": 1,
    }
    path = rows.parent / "recipe.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return load_recipe(path, list(changes))


def quiet(line: str) -> None:
    """Says nothing."""


def test_killed_it_goes_on_to_the_same_end(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(rows)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    said: list[str] = []
    train(recipe, whole, say=said.append, quiet=True)
    assert any("of the first window" in line for line in said)

    def dies(log: Log, step: Step) -> None:
        if step.number == 15:
            raise SystemError
        logged(log, step)

    logged = Log.step
    with monkeypatch.context() as patch:
        patch.setattr(Log, "step", dies)
        with pytest.raises(SystemError):
            train(recipe, killed, say=quiet, quiet=True)
    resume(killed, say=quiet, quiet=True)
    ours, theirs = (load_file(run / "checkpoints" / "step-00000024" / "weights.safetensors") for run in (whole, killed))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    state = json.loads((whole / "checkpoints" / "step-00000024" / "state.json").read_text())
    assert state["cursor"]["window"] + state["cursor"]["epoch"] > 0
