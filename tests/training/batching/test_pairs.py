"""Pairs: sides apart, like lengths together, and the loss that smoothing is said to be."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from intaglio.data.examples import Example
from intaglio.data.store import InMemory
from intaglio.errors import UserError
from intaglio.models.build import build_model
from intaglio.models.init import init_weights
from intaglio.specs import validate_model
from intaglio.training.batching.pairs import PairBatch, PairStream, pair_batches
from intaglio.training.objectives.seq2seq import Seq2SeqLoss
from intaglio.training.recipe import load_recipe
from intaglio.training.run import train

SAY: dict[str, Any] = {"say": lambda line: None, "quiet": True}
LAYER = {
    "norm": {"kind": "layer_norm"},
    "placement": "post",
    "attention": {"num_heads": 2},
    "feed_forward": {"intermediate_size": 24, "activation": "relu", "bias": True},
}
TRANSFORMER: dict[str, Any] = {
    "kind": "encoder_decoder",
    "hidden_size": 16,
    "max_position_embeddings": 64,
    "encoder": {"layers": [LAYER]},
    "decoder": {"layers": [LAYER]},
}
RECURRENT: dict[str, Any] = {
    "kind": "seq2seq",
    "embedding_size": 8,
    "hidden_size": 12,
    "cell": {"kind": "gru"},
    "attention": {"score": "additive"},
}
MODELS = {"transformer": TRANSFORMER, "recurrent": RECURRENT}


def pair(source: list[int], target: list[int], where: str = "") -> Example:
    mask = [False] * len(source) + [True] * len(target)
    return Example(np.array(source + target, dtype=np.int32), np.array(mask), where)


def pairs(count: int = 23) -> InMemory:
    dice = np.random.default_rng(0)

    def some() -> list[int]:
        return dice.integers(4, 40, dice.integers(1, 9)).tolist()

    return InMemory([pair(some(), [*some(), 3], f"f:{n}") for n in range(count)])


def test_sides_come_apart() -> None:
    (batch,) = pair_batches(InMemory([pair([5, 6, 7], [8, 3]), pair([9], [3])]), 2)
    assert batch.source.tolist() == [[9, 0, 0], [5, 6, 7]]
    assert batch.target.tolist() == [[3, 0], [8, 3]]
    assert (batch.source_lengths.tolist(), batch.target_lengths.tolist()) == ([1, 3], [1, 2])
    assert batch.num_targets == 3
    assert batch.ids.numel() == 7


def test_every_pair_once_an_epoch_with_its_like() -> None:
    stream = PairStream(pairs(24), 4, 64, seed=3)
    batches = [stream.step(1)[0] for _ in range(6)]
    assert Counter(where for batch in batches for where in batch.wheres) == Counter(f"f:{n}" for n in range(24))
    assert stream.efficiency > 0.7
    targets = [batch.target_lengths for batch in batches if isinstance(batch, PairBatch)]
    spread = [int(lengths.max() - lengths.min()) for lengths in targets]
    assert max(spread) <= 4
    other = PairStream(pairs(24), 4, 64, seed=3)
    for _ in range(3):
        other.step(1)
    resumed = PairStream(pairs(24), 4, 64, seed=3)
    resumed.load_state(other.state())
    assert resumed.step(1)[0].wheres == batches[3].wheres


def model_of(kind: str, vocab_size: int = 40) -> Any:
    spec = validate_model({"vocab_size": vocab_size, "start_token_id": 2, **MODELS[kind]})
    model = build_model(spec)
    init_weights(model, 0)
    return model


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_each_pair_alone(kind: str, smoothing: float) -> None:
    model, store = model_of(kind).train(), pairs(7)
    (batch,) = pair_batches(store, 7)
    total = Seq2SeqLoss(smoothing)(model, batch).total
    expected = torch.zeros(())
    for i in range(len(store)):
        border = int(store[i].supervised.argmax())
        ids = torch.from_numpy(store[i].ids.astype(np.int64))[None]
        source, target = ids[:, :border], ids[:, border:]
        read = torch.cat([torch.tensor([[2]]), target[:, :-1]], dim=1)
        logits = model.decode(read, model.encode(source))[0]
        log_probs = logits.log_softmax(dim=-1)
        right = log_probs.gather(1, target.T)[:, 0]
        expected = expected - ((1 - smoothing) * right + smoothing * log_probs.mean(dim=-1)).sum()
        by_torch = F.cross_entropy(logits, target[0], label_smoothing=smoothing, reduction="sum")
        assert by_torch.item() == pytest.approx(
            -((1 - smoothing) * right + smoothing * log_probs.mean(dim=-1)).sum().item(), rel=1e-5
        )
    assert total.item() == pytest.approx(expected.item(), rel=1e-5)


def test_measuring_does_not_smooth() -> None:
    model = model_of("transformer").eval()
    (batch,) = pair_batches(pairs(5), 5)
    smoothed, plain = Seq2SeqLoss(0.3)(model, batch), Seq2SeqLoss(0.0)(model, batch)
    assert torch.equal(smoothed.total, plain.total)
    accuracy = smoothed.metrics["accuracy"].value
    assert accuracy is not None
    assert 0 <= accuracy <= 1


RECIPE = """
architecture: ARCHITECTURE
tokenizer: {kind: characters}
data: DATA
objective: {kind: seq2seq, label_smoothing: 0.1}
validation: 0.2
over_long: drop
max_length: 40
micro_batch: 6
precision: float32
steps: 4
evaluate_every: 2
save_every: 2
threads: 1
answers: {rows: 4, max_tokens: 6}
"""


def write_recipe(folder: Path, architecture: dict[str, Any], rows: list[dict[str, Any]] | None = None) -> Path:
    rows = rows or [{"prompt": f"{i} apples", "completion": str(i)} for i in range(50)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    text = RECIPE.replace("DATA", str(folder / "rows.jsonl")).replace("ARCHITECTURE", json.dumps(architecture))
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")
    return folder / "recipe.yaml"


@pytest.mark.parametrize("kind", MODELS)
def test_a_run_trains_measures_and_saves(kind: str, tmp_path: Path) -> None:
    from intaglio.checkpoints.models import load_model, load_tokenizer

    outcome = train(load_recipe(write_recipe(tmp_path, MODELS[kind]), []), tmp_path / "run", **SAY)
    assert outcome.eval_loss is not None
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert set(report["answers"]["tuned"]) == {"exact_match", "low", "high"}
    assert len(report["tuned"]["texts"]) == 4
    model, tokenizer = load_model(tmp_path / "run" / "model"), load_tokenizer(tmp_path / "run" / "model")
    assert model.spec.start_token_id == tokenizer.bos_token_id
    assert tokenizer.encode("\t") == [tokenizer.unk_token_id]


def test_scheduled_sampling_is_for_recurrent_decoders(tmp_path: Path) -> None:
    changes = ["objective.scheduled_sampling=0.5", "answers=null", "steps=1"]
    assert train(load_recipe(write_recipe(tmp_path, RECURRENT), changes), tmp_path / "run", **SAY).steps == 1
    with pytest.raises(UserError, match="scheduled sampling is for recurrent decoders"):
        train(load_recipe(write_recipe(tmp_path, TRANSFORMER), changes), tmp_path / "other", **SAY)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "", "completion": "x"}, r"rows.jsonl:51: prompt: an empty source"),
        ({"text": "alone"}, r"rows.jsonl:51: objective seq2seq needs rows of prompt and completion"),
    ],
)
def test_rows_that_are_no_pairs(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    rows = [*({"prompt": f"{i} apples", "completion": str(i)} for i in range(50)), row]
    with pytest.raises(UserError, match=message):
        train(load_recipe(write_recipe(tmp_path, RECURRENT, rows), []), tmp_path / "run", **SAY)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("over_long=truncate", "over_long: drop"),
        ("packing=contiguous", "packing means nothing to objective seq2seq"),
        ("neftune=5", "neftune means nothing to objective seq2seq"),
        ("tokenizer={kind: bpe, vocab_size: 100}", "the 256 bytes alone"),
        ("tokenizer={kind: words}", "needs vocab_size"),
        ("tokenizer={kind: characters, pattern: a}", "pattern means nothing"),
    ],
)
def test_what_would_do_nothing_is_refused(change: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        load_recipe(write_recipe(tmp_path, RECURRENT), [change])


def test_a_batch_moves_whole() -> None:
    (batch,) = pair_batches(pairs(3), 3)
    moved = batch.to("meta")
    assert isinstance(moved, PairBatch)
    assert {moved.source.device.type, moved.target_lengths.device.type, moved.ids.device.type} == {"meta"}
