"""Taggers: a tag for each token, whatever else its row is packed with; trained, measured, saved and loaded."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from intaglio.checkpoints.taggers import load_tagger
from intaglio.data.examples import Counts
from intaglio.data.readers import Row
from intaglio.data.store import InMemory
from intaglio.errors import UserError
from intaglio.models.heads import Tagger
from intaglio.models.recurrent import RecurrentEncoder
from intaglio.specs import RecurrentSpec, validate
from intaglio.text.tokenizer import Tokenizer
from intaglio.text.whole_units import words_of
from intaglio.training.batching.batches import AnnotatedStream
from intaglio.training.batching.tagged import Tags, encode_tagged, tagged_batches
from intaglio.training.objectives.tagger import TagLoss
from intaglio.training.recipe import load_recipe
from intaglio.training.run import train

SENTENCES = [
    (["the", "can", "fell"], ["at", "nn", "vb"]),
    (["they", "can", "swim", "well"], ["pp", "md", "vb", "rb"]),
    (["swim"], ["vb"]),
]


def rows(sentences: Any = SENTENCES) -> list[Row]:
    return [Row({"tokens": tokens, "tags": tags}, f"f:{n}") for n, (tokens, tags) in enumerate(sentences)]


def tokenizer() -> Tokenizer:
    return words_of(" ".join(tokens) for tokens, _ in SENTENCES)


def encoded(**more: Any) -> tuple[InMemory, Tags, Counts]:
    counts = Counts()
    found = list(encode_tagged(rows(), tokenizer(), counts, **{"max_length": 9, **more}))
    tags = Tags.of({example.where: given for example, given in found})
    return InMemory([example for example, _ in found]), tags, counts


def test_labels_are_the_tags_of_the_tokens() -> None:
    store, tags, counts = encoded()
    batch = AnnotatedStream(store, partial(tagged_batches, tags=tags), 1, 16, "best_fit").step(1)[0]
    names = [tags.names[label] for label in batch.labels[0].tolist()]
    by_row = dict(zip((f"f:{n}" for n in range(3)), (given for _, given in SENTENCES), strict=True))
    assert names == [tag for where in batch.wheres for tag in by_row[where]]
    assert (batch.num_targets, counts.kept) == (8, 3)


def test_long_rows_are_cut_or_dropped() -> None:
    _, tags, counts = encoded(max_length=3)
    assert (len(tags.numbers["f:1"]), counts.truncated) == (3, 1)
    _, tags, counts = encoded(max_length=3, over_long="drop")
    assert ("f:1" in tags.numbers, counts.dropped_long) == (False, 1)


def test_the_loss_is_that_of_each_sentence_alone() -> None:
    store, tags, _ = encoded()
    fields = {"vocab_size": tokenizer().vocab_size, "embedding_size": 6, "hidden_size": 5, "cell": {"kind": "lstm"}}
    model = Tagger(RecurrentEncoder(validate(RecurrentSpec, {**fields, "bidirectional": True})), len(tags.names))
    batch = AnnotatedStream(store, partial(tagged_batches, tags=tags), 1, 16, "best_fit").step(1)[0]
    found = TagLoss()(model, batch)
    expected, correct = 0.0, 0
    for i in range(len(store)):
        scores, wanted = model(torch.from_numpy(store[i].ids.astype("int64"))[None])[0], tags.numbers[store[i].where]
        expected += F.cross_entropy(scores, torch.from_numpy(wanted), reduction="sum").item()
        correct += int((scores.argmax(dim=-1).numpy() == wanted).sum())
    assert found.total.item() == pytest.approx(expected, rel=1e-5)
    assert found.metrics["accuracy"].value == pytest.approx(correct / batch.num_targets)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"tokens": ["a"], "tags": ["x", "y"]}, "f:0: 1 tokens and 2 tags; give each token a tag"),
        ({"tokens": ["a"]}, "f:0: tags: a row of a tagged set needs tags"),
        ({"tokens": "a b", "tags": ["x"]}, "f:0: tokens: a row of a tagged set needs tokens"),
    ],
)
def test_rows_that_are_not_tagged(value: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(encode_tagged([Row(value, "f:0")], tokenizer(), Counts(), 9))


def test_a_tag_that_is_not_among_the_names() -> None:
    with pytest.raises(UserError, match="unknown tag 'vb'; did you mean vbd"):
        Tags.of({"f:0": ["vb"]}, ("nn", "vbd"))


RECIPE = """
architecture: {kind: recurrent, embedding_size: 8, hidden_size: 8, bidirectional: true, cell: {kind: lstm}}
tokenizer: {kind: words, vocab_size: 30}
data: DATA
objective: {kind: tagger}
validation: 0.3
max_length: 16
micro_batch: 2
precision: float32
steps: 60
optimizer: {learning_rate: 0.03}
evaluate_every: 60
threads: 1
"""


def test_a_run_learns_what_hangs_on_what_follows(tmp_path: Path) -> None:
    """A word's tag is told by the word behind it alone, so a model that reads one way could not know."""
    lines = []
    for i in range(80):
        verb = i % 2 == 0
        filler = [f"w{i % 7}"] * (i % 5)
        tags = ["x"] * len(filler)
        lines.append(
            {"tokens": [*filler, "can", "swim" if verb else "opener"], "tags": [*tags, "md" if verb else "nn", "z"]}
        )
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("DATA", str(tmp_path / "rows.jsonl")), encoding="utf-8")
    outcome = train(load_recipe(tmp_path / "recipe.yaml", []), tmp_path / "run", say=lambda line: None, quiet=True)
    log = [json.loads(line) for line in (outcome.run / "log.jsonl").read_text().splitlines()]
    assert [line["eval_accuracy"] for line in log if "eval_accuracy" in line] == [1.0]
    model, names = load_tagger(outcome.run / "model")
    words = Tokenizer.from_directory(outcome.run / "model")
    scores = model(torch.tensor([[words.token_id("can"), words.token_id("opener")]]))
    assert [names[i] for i in scores[0].argmax(dim=-1).tolist()] == ["nn", "z"]


def test_a_directory_without_a_tagger_is_refused(toy_dir: Path) -> None:
    with pytest.raises(UserError, match="no tagger; load it with load_model"):
        load_tagger(toy_dir)
