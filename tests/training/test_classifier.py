"""A classifier by the one loop: its loss in sums, its rows, and a recipe from words to scores that others open."""

import json
import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from safetensors.torch import load_file
from torch import Tensor

from intaglio.checkpoints.classifiers import load_classifier
from intaglio.data.examples import Counts, Example
from intaglio.data.readers import Row
from intaglio.data.store import InMemory
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier, init_head
from intaglio.planning.parameters import decays
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.batching.batches import AnnotatedStream, Batch, make_batch
from intaglio.training.batching.labelled import Labels, encode_labelled, labelled_batches, texts_of
from intaglio.training.loop import Loop, evaluate
from intaglio.training.objectives.classifier import Classifier
from intaglio.training.preview import preview
from intaglio.training.recipe import load_recipe
from intaglio.training.run import resume, train
from intaglio.training.stepping.master import MasterWeights
from intaglio.training.stepping.optimizer import OptimizerSpec, build_optimizers
from intaglio.training.stepping.schedule import ScheduleSpec
from tiny_specs import ZOO
from toy_tokenizers import byte_level

RECIPE = Path(__file__).parents[2] / "recipes" / "classify-gpt1.yaml"
RAGGED = [[5, 9, 2], [7, 1], [8, 8, 1, 2, 60, 3, 17], [4, 4, 4, 4], [3], [11, 12]]


def words() -> Tokenizer:
    return Tokenizer(byte_level(), {"eos_token": "<|endoftext|>"})


def model_of(name: str = "MHA", num_labels: int = 2) -> SequenceClassifier:
    torch.manual_seed(1)
    model = SequenceClassifier(Decoder(ZOO[name]), num_labels)
    init_head(model, 0)
    return model


def example(ids: list[int], where: str) -> Example:
    encoded = torch.tensor(ids, dtype=torch.int32).numpy()
    return Example(encoded, torch.arange(len(ids)).gt(0).numpy(), where)


def labelled(texts: list[list[int]] = RAGGED, each: int = 0) -> list[Batch]:
    """The texts in batches of `each` (0: all in one), labelled 0, 1, 0, 1, ..."""
    examples = [example(ids, f"rows:{number}") for number, ids in enumerate(texts)]
    numbers = {one.where: number % 2 for number, one in enumerate(examples)}
    size = each or len(examples)
    batches = [make_batch(examples[first : first + size]) for first in range(0, len(examples), size)]
    return [*labelled_batches(batches, Labels(("no", "yes"), numbers))]


def sums_by_hand(model: SequenceClassifier, texts: list[list[int]] = RAGGED) -> tuple[Tensor, Tensor, int]:
    """The class losses and the next-token losses of each text alone, and how many of the latter there are."""
    classes, tokens, targets = torch.zeros(()), torch.zeros(()), 0
    for number, text in enumerate(texts):
        ids = torch.tensor([text])
        hidden = model.decoder.hidden_states(ids)
        classes = classes + F.cross_entropy(model.score(hidden[:, -1]), torch.tensor([number % 2]))
        logits = model.decoder.logits(hidden)[0, :-1]
        tokens = tokens + F.cross_entropy(logits, ids[0, 1:], reduction="sum")
        targets += len(text) - 1
    return classes, tokens, targets


@pytest.mark.parametrize("name", ["MHA", "learned positions, tied", "post layer_norm"])
@pytest.mark.parametrize("lm_weight", [0.0, 0.5])
def test_the_loss_in_sums(name: str, lm_weight: float) -> None:
    """Equation 5: class losses by documents, next-token losses by targets, each text as if it were alone."""
    model = model_of(name)
    (batch,) = labelled()
    loss = Classifier(lm_weight, chunk=5)(model, batch)
    classes, tokens, targets = sums_by_hand(model)
    assert batch.num_targets == len(RAGGED)
    expected = (classes / len(RAGGED) + lm_weight * tokens / targets).item()
    assert loss.total.item() / batch.num_targets == pytest.approx(expected, rel=1e-5)


def test_the_gradient_is_that_of_the_sums() -> None:
    model = model_of("post layer_norm")
    (batch,) = labelled()
    (Classifier(0.5, chunk=5)(model, batch).total / batch.num_targets).backward()
    found = [p.grad for p in model.parameters()]
    model.zero_grad()
    classes, tokens, targets = sums_by_hand(model)
    (classes / len(RAGGED) + 0.5 * tokens / targets).backward()
    for one, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("each", [1, 2, 4])
def test_splitting_a_step_changes_nothing(each: int) -> None:
    model = model_of()
    found = {}
    for size in (0, each):
        model.zero_grad()
        batches = labelled(each=size)
        documents = sum(batch.num_targets for batch in batches)
        total = sum(Classifier()(model, batch).total / documents for batch in batches)
        assert isinstance(total, torch.Tensor)
        total.backward()
        found[size] = total.item(), [p.grad for p in model.parameters() if p.grad is not None]
    assert found[each][0] == pytest.approx(found[0][0], rel=1e-5)
    for one, other in zip(found[each][1], found[0][1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("lm_weight", [0.0, 0.5])
def test_gradients_reach_the_decoder(lm_weight: float) -> None:
    model = model_of()
    if not lm_weight:
        model.drop_outputs()
    Classifier(lm_weight)(model, labelled()[0]).total.backward()
    silent = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum()]
    assert silent == []


def test_texts_of_one_token_have_a_class_too() -> None:
    model = model_of()
    loss = Classifier()(model, labelled([[3], [9]])[0])
    loss.total.backward()
    assert loss.total.item() == pytest.approx(sums_by_hand(model, [[3], [9]])[0].item(), rel=1e-5)


def test_accuracy_is_of_documents() -> None:
    model = model_of()
    batches = labelled(each=4)
    right = sum(int(model(torch.tensor([text])).argmax()) == number % 2 for number, text in enumerate(RAGGED))
    found = evaluate(model, Classifier(0.0), batches)
    assert found.accuracy == pytest.approx(right / len(RAGGED))
    assert found.loss == pytest.approx(sums_by_hand(model)[0].item() / len(RAGGED), rel=1e-5)


def test_mixtures_are_balanced_too() -> None:
    spec = ZOO["experts"]
    block = spec.blocks[0]
    moe = block.feed_forward.updated(load_balancing_coef=0.01)
    model = SequenceClassifier(Decoder(spec.updated(layers=[block.updated(feed_forward=moe)])), 2)
    extra = Classifier()(model, labelled()[0]).extra
    assert extra is not None
    assert extra.item() > 0


def test_the_loop_steps_it(tmp_path: Path) -> None:
    """It knows the objective and the stream, whatever they are; heads are decayed no more than outputs."""
    model = model_of("learned positions, tied")
    examples = [example(ids, f"rows:{number}") for number, ids in enumerate(RAGGED)]
    labels = Labels(("no", "yes"), {one.where: number % 2 for number, one in enumerate(examples)})
    masters = MasterWeights(model, torch.float32)
    stream = AnnotatedStream(InMemory(examples), partial(labelled_batches, labels=labels), 2, 16, "none")
    spec = OptimizerSpec(learning_rate=3e-3)
    loop = Loop(
        model, masters, Classifier(), stream, build_optimizers(spec, masters.masters), ScheduleSpec(), steps=40,
        accumulation=3,
    )  # fmt: skip
    first, rest = loop.step(), [loop.step() for _ in range(39)]
    assert first.targets == len(RAGGED)
    classes, tokens, targets = sums_by_hand(model_of("learned positions, tied"))
    assert first.loss == pytest.approx((classes / len(RAGGED) + 0.5 * tokens / targets).item(), rel=1e-5)
    assert rest[-1].loss < 0.5 * first.loss
    outside = ("decoder.embed_tokens.weight", "decoder.positions.weight", "score.weight")
    assert {n for n, p in masters.masters.items() if p.ndim == 2 and not decays(n, p.shape)} == set(outside)


def rows_of(*values: dict[str, Any] | str) -> Iterator[Row]:
    return (Row(value, f"rows.jsonl:{number}") for number, value in enumerate(values, 1))


def encoded(*values: dict[str, Any] | str, max_length: int = 64, **more: Any) -> tuple[list[str], Counts]:
    tokenizer, counts = words(), Counts()
    pairs = encode_labelled(rows_of(*values), tokenizer, counts, max_length, **more)
    return [tokenizer.decode(one.ids, skip_special_tokens=False) for one, _ in pairs], counts


def test_a_row_ends_with_the_token_it_is_read_at() -> None:
    texts, _ = encoded(
        {"text": "hello", "label": 1},
        {"text": "hello", "text_pair": "there", "label": "x"},
        {"text": "hi<|endoftext|>", "label": 1},
    )
    assert texts == ["hello<|endoftext|>", "hello$there<|endoftext|>", "hi<|endoftext|>"]
    assert encoded({"text": "a", "text_pair": "b", "label": 1}, delimiter=" | ")[0] == ["a | b<|endoftext|>"]


def test_what_is_too_long_loses_text_and_never_its_end() -> None:
    row = {"text": "xyz" * 20, "label": 1}
    for size in (3, 10):
        texts, counts = encoded(row, {"text": "x", "text_pair": "xyz" * 20, "label": 1}, max_length=size)
        assert [len(words().encode(text)) for text in texts] == [size, size]
        assert all(text.endswith("<|endoftext|>") for text in texts)
        assert texts[1].startswith("x$")
        assert (counts.read, counts.kept, counts.truncated) == (2, 2, 2)
    texts, counts = encoded(row, {"text": "x", "label": 1}, max_length=10, over_long="drop")
    assert (texts, counts.dropped_long, counts.kept) == (["x<|endoftext|>"], 1, 1)


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ("bare", "text"),
        ({"label": 1}, "text"),
        ({"text": "", "label": 1}, "text"),
        ({"text": "a"}, "label"),
        ({"text": "a", "label": 0.5}, "label"),
        ({"text": "a", "text_pair": 3, "label": 1}, "text"),
    ],
)
def test_a_row_that_says_too_little_is_named(row: dict[str, Any] | str, key: str) -> None:
    with pytest.raises(UserError, match=rf"rows\.jsonl:1: {key}"):
        encoded(row)


def test_a_tokenizer_learns_from_both_texts() -> None:
    rows = rows_of({"text": "a", "label": 1}, {"text": "b", "text_pair": "c", "label": 2})
    assert list(texts_of(rows)) == ["a", "b", "c"]


def test_labels_are_in_order() -> None:
    assert Labels.of({"a": "sun", "b": "rain"}).names == ("rain", "sun")
    assert Labels.of({"a": 10, "b": 9, "c": 10}).names == ("9", "10")
    given = Labels.of({"a": "0", "b": 1}, (1, 0))
    assert (given.names, given.numbers) == (("1", "0"), {"a": 1, "b": 0})
    with pytest.raises(UserError, match=r"snow.*did you mean sow") as caught:
        Labels.of({"r.csv#3": "snow"}, ("sow", "sun"))
    assert "r.csv#3" in str(caught.value)
    for found, names in (({"a": "x"}, ()), ({}, ("x", "x"))):
        with pytest.raises(UserError, match="two or more"):
            Labels.of(found, names)


@pytest.fixture
def recipe(tmp_path: Path) -> tuple[Path, list[str]]:
    """The shipped recipe at toy size, on rows of our own where one word decides the label."""
    plain = "the sea takes what the river brings and gives it back as over every hill and field".split()
    rows, dice = [], random.Random(0)
    for _ in range(400):
        label = dice.randrange(2)
        text = dice.choices(plain, k=dice.randint(1, 5))
        text.insert(dice.randint(0, len(text)), ("storm", "calm")[label])
        rows.append({"text": " ".join(text), "label": ("bad", "good")[label]})
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    toy = yaml.safe_load(RECIPE.read_text())
    toy["architecture"]["hidden_size"] = 32
    toy["architecture"]["layers"][0]["repeat"] = 2
    toy["architecture"]["layers"][0]["feed_forward"]["intermediate_size"] = 128  # as GPT-1: four times as wide
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(toy), encoding="utf-8")
    changes = f"""
        data={data} tokenizer.vocab_size=380 objective.lm_weight=0.2 micro_batch=4 epochs=null steps=120
        optimizer.learning_rate=4e-3 schedule.warmup=10 evaluate_every=60 save_every=60 threads=1 precision=float32
    """.split()
    return path, changes


def run_to(recipe: tuple[Path, list[str]], out: Path, *changes: str) -> list[dict[str, Any]]:
    train(load_recipe(recipe[0], [*recipe[1], *changes]), out, say=lambda line: None, quiet=True)
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def test_the_recipe_learns_the_word_that_decides(recipe: tuple[Path, list[str]], tmp_path: Path) -> None:
    lines = run_to(recipe, tmp_path / "run")
    assert [line["eval_accuracy"] for line in lines if "eval_accuracy" in line][-1] == 1.0
    assert not any("eval_bits_per_byte" in line for line in lines)

    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    ours, tokenizer = load_classifier(tmp_path / "run" / "model"), Tokenizer.from_directory(tmp_path / "run" / "model")
    assert ours.labels == ("bad", "good")
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "model").eval()
    assert type(theirs).__name__ == "OpenAIGPTForSequenceClassification"
    texts = [f"the sea takes {word} and the river{tokenizer.eos_token}" for word in ("storm", "calm and")]
    batch = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        found = theirs(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        mine = torch.cat([ours(torch.tensor([tokenizer.encode(text)])) for text in texts])
    torch.testing.assert_close(found, mine, rtol=0, atol=1e-4)
    assert [theirs.config.id2label[i] for i in found.argmax(dim=1).tolist()] == ["bad", "good"]


def test_a_dry_run_shows_labels(recipe: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    preview(load_recipe(recipe[0], recipe[1]))
    shown = [line for line in capsys.readouterr().out.splitlines() if "; label: " in line]
    rows = (recipe[0].parent / "rows.jsonl").read_text(encoding="utf-8").splitlines()[:2]
    assert [line.rpartition("; label: ")[2] for line in shown] == [json.loads(row)["label"] for row in rows]


def test_a_resumed_run_ends_the_same(recipe: tuple[Path, list[str]], tmp_path: Path) -> None:
    changes = ("steps=12", "save_every=5", "keep=9", "evaluate_every=0", "precision=bfloat16")
    run_to(recipe, tmp_path / "whole", *changes)
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    last = tmp_path / "again" / "checkpoints" / "step-00000012"
    for file in last.iterdir():
        file.unlink()
    last.rmdir()
    resume(tmp_path / "again", say=lambda line: None, quiet=True)
    ours, theirs = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("again", "whole"))
    assert ours.keys() == theirs.keys()
    assert "score.weight" in ours
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_it_starts_from_a_pretrained_model(recipe: tuple[Path, list[str]], tmp_path: Path) -> None:
    pretrained = ("objective={kind: language_model}", "steps=6", "evaluate_every=0", "save_every=0")
    run_to(recipe, tmp_path / "before", *pretrained)
    model = f"model={tmp_path / 'before' / 'model'}"
    tuning = ("architecture=null", "tokenizer=null", "steps=1", "optimizer.learning_rate=1e-9", "evaluate_every=0")
    run_to(recipe, tmp_path / "after", model, *tuning)
    before, after = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("before", "after"))
    assert set(after) - set(before) == {"score.weight"}
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["packing=contiguous"], ["contiguous"]),
        (["neftune=5"], ["neftune", "classifier"]),
        (["supervise=all"], ["supervise", "classifier"]),
        (["sample_every=5", "prompts=[a]"], ["sample_every", "classifier"]),
        (["objective.lm_weigth=1"], ["lm_weigth", "lm_weight"]),
        (["objective.kind=classifer"], ["classifer", "classifier"]),
        (["objective.lm_weight=-1"], ["objective.lm_weight"]),
    ],
)
def test_a_wrong_recipe_is_one_line(recipe: tuple[Path, list[str]], changes: list[str], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe(recipe[0], [*recipe[1], *changes])
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)
