"""Lanes: every token is predicted once, states go on and begin where they should, and a resumed run is the same."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from intaglio.data.examples import Example
from intaglio.data.store import InMemory
from intaglio.errors import UserError
from intaglio.models.init import init_weights
from intaglio.models.recurrent import RecurrentModel
from intaglio.specs import RecurrentSpec, validate
from intaglio.training.batching.batches import IGNORE
from intaglio.training.batching.lanes import LaneBatch, LaneStream, lane_batches
from intaglio.training.objectives.truncated_bptt import TruncatedBPTT
from intaglio.training.recipe import load_recipe
from intaglio.training.run import resume, train


def documents(lengths: list[int], start: int = 0) -> InMemory:
    """Every id occurs once."""
    ends = start + np.cumsum(lengths)
    spans = [np.arange(end - length, end, dtype=np.int32) for end, length in zip(ends, lengths, strict=True)]
    return InMemory([Example(ids, np.arange(len(ids)) > 0, f"f:{n}") for n, ids in enumerate(spans)])


def model_of(vocab_size: int = 64, cell: str = "lstm") -> RecurrentModel:
    fields = {"vocab_size": vocab_size, "embedding_size": 8, "hidden_size": 12, "num_layers": 2}
    model = RecurrentModel(validate(RecurrentSpec, {**fields, "cell": {"kind": cell}}))
    init_weights(model, 0)
    return model


@pytest.mark.parametrize(("lanes", "steps"), [(1, 4), (3, 5), (4, 100), (7, 2)])
def test_every_token_but_the_first_of_a_document_is_predicted_once(lanes: int, steps: int) -> None:
    store = documents([3, 9, 1, 17, 2, 6])
    batches = list(lane_batches(store, lanes, steps, "document"))
    found = Counter(label for batch in batches for label in batch.labels[0].tolist() if label != IGNORE)
    firsts = {int(store[i].ids[0]) for i in range(len(store))}
    assert found == Counter(set(range(38)) - firsts)
    assert Counter(i for batch in batches for i in batch.ids[0].tolist()) == Counter(range(38))
    assert all(batch.num_targets == int((batch.labels != IGNORE).sum()) for batch in batches)


def test_a_lane_goes_on_where_it_was() -> None:
    one, two, three = lane_batches(documents([7, 2]), 1, 3, "document")
    assert [batch.ids[0].tolist() for batch in (one, two, three)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert one.labels[0].tolist() == [1, 2, 3]
    assert three.labels[0].tolist() == [IGNORE, 8, IGNORE]
    assert (three.documents, three.goes_on.tolist()) == ([1, 2], [True])
    assert (one.goes_on.tolist(), two.goes_on.tolist()) == ([False], [True])


def test_carried_across_documents_or_not() -> None:
    cut = next(iter(lane_batches(documents([2, 2]), 1, 4, "document")))
    whole = next(iter(lane_batches(documents([2, 2]), 1, 4, "text")))
    assert (cut.documents, whole.documents) == ([2, 2], [4])
    assert cut.labels.tolist() == whole.labels.tolist() == [[1, IGNORE, 3, IGNORE]]


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_steps_together_have_the_loss_of_whole_documents(cell: str, lanes: int) -> None:
    """In steps or at once: the state that is carried is the one that reading on would have."""
    store, model = documents([7, 5, 4, 6, 3]), model_of(cell=cell).eval()  # a second lane begins where one does
    objective = TruncatedBPTT()
    with torch.no_grad():
        steps = sum(float(objective(model, batch).total) for batch in lane_batches(store, lanes, 4, "document"))
    expected = 0.0
    for i in range(len(store)):
        ids = torch.from_numpy(store[i].ids.astype(np.int64))[None]
        logits = model(ids)[0, :-1]
        expected += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
    assert steps == pytest.approx(expected, rel=1e-5)


def test_measuring_leaves_what_training_carries_alone() -> None:
    model, objective = model_of(), TruncatedBPTT()
    first, second, *_ = lane_batches(documents([20, 20]), 2, 4, "text")
    model.train()
    objective(model, first)
    before = objective.state()
    model.eval()
    for batch in lane_batches(documents([9, 8]), 2, 3, "text"):
        assert "accuracy" in objective(model, batch).metrics
    after = objective.state()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert isinstance(second, LaneBatch)


def test_no_gradient_goes_back_beyond_a_step() -> None:
    model, objective = model_of(), TruncatedBPTT()
    model.train()
    first, second, *_ = lane_batches(documents([40]), 1, 8, "document")
    objective(model, first).total.backward()
    objective(model, second).total.backward()  # would ask for freed buffers if it did
    assert not any(part.requires_grad for part in objective.state().values())


def test_a_stream_goes_on_across_epochs_and_from_a_saved_place() -> None:
    def stream() -> LaneStream:
        return LaneStream(documents([5, 9, 4, 13]), 3, 4, "document", seed=1)

    one, other = stream(), stream()
    read = [one.step(1)[0] for _ in range(4)]
    assert one.epoch == 1
    for _ in range(2):
        other.step(1)
    third = stream()
    third.load_state(other.state())
    assert torch.equal(third.step(1)[0].ids, read[2].ids)


RECIPE = """
architecture: {kind: recurrent, embedding_size: 12, hidden_size: 16, num_layers: 2, dropout: 0.2, cell: {kind: gru}}
tokenizer: {kind: characters}
data: DATA
objective: {kind: truncated_bptt, carry: text}
validation: 0.2
max_length: 8
micro_batch: 3
precision: float32
steps: 8
evaluate_every: 3
save_every: 4
threads: 1
"""


def write_recipe(folder: Path, text: str = RECIPE) -> Path:
    rows = [{"text": f"line {i} says {'abcdef'[i % 6] * 3}"} for i in range(40)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "recipe.yaml").write_text(text.replace("DATA", str(folder / "rows.jsonl")), encoding="utf-8")
    return folder / "recipe.yaml"


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = write_recipe(tmp_path)
    whole = train(load_recipe(recipe, []), tmp_path / "whole", say=lambda line: None, quiet=True)
    train(load_recipe(recipe, []), tmp_path / "cut", say=lambda line: None, quiet=True)
    last = tmp_path / "cut" / "checkpoints" / "step-00000008"
    assert (last / "objective.safetensors").exists()
    for file in last.iterdir():
        file.unlink()
    last.rmdir()
    resume(tmp_path / "cut", say=lambda line: None, quiet=True)
    for name in ("weights", "optimizer", "objective"):
        left, right = (
            load_file(tmp_path / run / "checkpoints" / "step-00000008" / f"{name}.safetensors")
            for run in ("whole", "cut")
        )
        assert left.keys() == right.keys()
        assert all(torch.equal(left[key], right[key]) for key in left)
    assert whole.eval_loss is not None


def test_it_is_for_recurrent_models(tmp_path: Path) -> None:
    from tiny_specs import block

    layer = block()
    text = RECIPE.replace(
        RECIPE.splitlines()[1],
        f"architecture: {json.dumps({'hidden_size': 32, 'max_position_embeddings': 32, 'layers': [layer]})}",
    )
    recipe = load_recipe(write_recipe(tmp_path, text), [])
    with pytest.raises(UserError, match="objective truncated_bptt trains recurrent models, and this is none"):
        train(recipe, tmp_path / "run", say=lambda line: None, quiet=True)
    with pytest.raises(UserError, match="packing means nothing to objective truncated_bptt"):
        load_recipe(write_recipe(tmp_path), ["packing=none"])
