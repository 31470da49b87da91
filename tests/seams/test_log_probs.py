"""The log-probabilities of the same tokens, whichever door leads to the model.

All are held against the training forward, within a stated tolerance for each door. In fp32 that is rounding; in bf16
it is the rounding of a bf16 logit, since the doors multiply in different orders and layouts.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from intaglio.adapters.merge import load_merged, merge_directories
from intaglio.adapters.models import load_model
from intaglio.adapters.served import read_updates
from intaglio.checkpoints.load import load_directory
from intaglio.checkpoints.save import save_model
from intaglio.data.examples import Example
from intaglio.engine.engine import Engine
from intaglio.engine.llm import LLM
from intaglio.training.batching.batches import Batch, make_batch
from intaglio.training.objectives.language_model import LanguageModel
from seam_doors import (
    SMALL,
    Place,
    by_api,
    by_cache,
    by_engine,
    by_paged_steps,
    by_training,
    by_transformers,
    generated,
    make_adapter,
)
from toy_llms import toy_tokenizer

DTYPES = ("float32", "bfloat16")
TEXTS = (
    "the user says hello to the assistant and the assistant says hi",
    "the user says hello to the assistant, thanks!",
    "42 answers",
    "你好 the answer",
)
"""Two begin alike, no two are as long."""

CLOSE = {
    "float32": {"ours": 1e-5, "transformers": 1e-5, "adapter": 2e-5},
    "bfloat16": {"ours": 0.06, "transformers": 0.15, "adapter": 0.2},
}
"""Nats. The logits of the toy reach 8, where neighbours in bf16 are 0.03 apart. transformers rounds rotated keys and
norms elsewhere; what an adapter adds in fp32 is rounded once more where it is merged into bf16."""


def close(at: Place, found: list[list[float]], what: str = "ours") -> None:
    """Asserts that each number is near the training forward's."""
    assert max(at.gaps(found)) <= CLOSE[at.dtype][what]


@pytest.fixture(scope="module", params=DTYPES)
def place(request: pytest.FixtureRequest, toy_dir: Path) -> Place:
    llm = LLM(toy_dir, dtype=request.param, config=SMALL)
    prompts = llm.tokenizer.encode_batch(TEXTS)
    rows, made = generated(llm, prompts, 5)
    assert llm.engine.stats().prefix_hits >= 8  # the second prompt began as the first did
    assert len({len(row) for row in rows}) == len(rows)
    wanted = by_training(load_directory(toy_dir, request.param), rows)
    return Place(toy_dir, request.param, rows, made, wanted)


def test_a_model_is_sure_of_nothing_here(place: Place) -> None:
    """Numbers that all were 0, or all alike, would agree however wrong they were."""
    flat = np.concatenate(place.wanted)
    assert flat.std() > 1
    assert flat.max() < 0


def test_the_loss_is_made_of_them(place: Place) -> None:
    model = load_directory(place.folder, place.dtype)
    loss = LanguageModel()(model, _batch(place.rows)).total
    assert float(loss.detach()) == pytest.approx(-sum(map(sum, place.wanted)), abs=CLOSE[place.dtype]["ours"] * 5)


def test_what_the_engine_told_while_it_made_them(place: Place) -> None:
    close(place, place.made)


DOORS: dict[str, Callable[[Place], list[list[float]]]] = {
    "the cached forward": lambda at: by_cache(load_directory(at.folder, at.dtype), at.rows),
    "paged steps": lambda at: by_paged_steps(load_directory(at.folder, at.dtype), at.rows),
    "the paged engine": lambda at: by_engine(_engine(at), at.rows),
    "the API": lambda at: by_api(at.folder, at.rows, at.dtype),
    "transformers": lambda at: by_transformers(at.folder, at.rows, at.dtype),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door(place: Place, door: str) -> None:
    close(place, DOORS[door](place), "transformers" if door == "transformers" else "ours")


def test_exported_opened_and_imported_again(place: Place, tmp_path: Path) -> None:
    """Through our directory, transformers' own of the same, and back."""
    from transformers import AutoModelForCausalLM

    save_model(load_directory(place.folder, place.dtype), tmp_path / "export", toy_tokenizer())
    close(place, by_transformers(tmp_path / "export", place.rows, place.dtype), "transformers")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "export", dtype=getattr(torch, place.dtype))
    theirs.save_pretrained(tmp_path / "theirs")
    again = load_directory(tmp_path / "theirs")
    assert next(again.parameters()).dtype == getattr(torch, place.dtype)
    assert by_training(again, place.rows) == place.wanted  # to the bit: nothing was lost on the way


def test_an_adapter_beside_in_training_in_the_engine_at_the_api_and_merged(place: Place, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"r": 2, "lora_alpha": 6, "target_modules": ("q_proj", "o_proj", "down_proj")}
    adapter = make_adapter(place.folder, tmp_path / "adapter", 1, **settings)
    trained = place._replace(
        wanted=by_training(load_model(place.folder, dtype=place.dtype, adapter=adapter), place.rows)
    )
    assert np.abs(np.concatenate(trained.wanted) - np.concatenate(place.wanted)).mean() > 0.3
    engine = _engine(place)
    engine.load_adapter("a", read_updates(adapter, engine._model, place.folder))
    close(trained, by_engine(engine, place.rows, "a"), "adapter")
    close(place, by_engine(engine, place.rows))  # the model itself, in the engine that has an adapter
    close(trained, by_api(place.folder, place.rows, place.dtype, a=adapter), "adapter")
    merged, _ = load_merged(place.folder, adapter, dtype=place.dtype)
    close(trained, by_training(merged, place.rows), "adapter")
    merge_directories(place.folder, adapter, tmp_path / "merged", dtype=place.dtype)
    close(trained, by_transformers(tmp_path / "merged", place.rows, place.dtype), "adapter")
    assert by_training(load_directory(tmp_path / "merged"), place.rows) == by_training(merged, place.rows)


def _engine(at: Place) -> Engine:
    llm = LLM(at.folder, dtype=at.dtype, config=SMALL)
    return llm.engine


def _batch(rows: list[list[int]]) -> Batch:
    """All tokens but each text's first are learned."""
    masks = [np.arange(len(row)) > 0 for row in rows]
    return make_batch([Example(np.array(row, dtype=np.int32), m, "") for row, m in zip(rows, masks, strict=True)])
