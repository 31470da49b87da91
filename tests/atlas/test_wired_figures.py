"""Figures of cells, Seq2Seq and attention: what is drawn is what the real modules had in hand, by sums of our own."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from intaglio.atlas.figure import Figure, chinese, english
from intaglio.atlas.figures.attention_steps import AttentionSteps, watched
from intaglio.atlas.figures.bidirectional import Bidirectional, seen_inputs
from intaglio.atlas.figures.cells import Cells, one_step
from intaglio.atlas.figures.cross_attention import CrossAttending
from intaglio.atlas.figures.in_context import InContext, prompt_of
from intaglio.atlas.figures.masked_training import MaskedTraining, by_prefix, gradients
from intaglio.atlas.figures.self_attention import SelfAttention
from intaglio.atlas.figures.teacher_forcing import TeacherForcing, forced, written
from intaglio.atlas.small_runs import fresh, small_spec
from intaglio.atlas.small_words import END, START, ids_of, learn, letters_of, reversed_to_end, words_model
from intaglio.checkpoints.load import load_directory
from intaglio.parts.context import Whole
from intaglio.parts.recurrent import Cell, build_cell
from intaglio.parts.scoring import Additive, Attention
from intaglio.specs import CellSpec, GRUCellSpec, LSTMCellSpec, RNNCellSpec
from intaglio.text.tokenizer import Tokenizer

SPECS: dict[str, CellSpec] = {"rnn": RNNCellSpec(), "lstm": LSTMCellSpec(), "gru": GRUCellSpec()}


def near(found: Any, wanted: Tensor) -> None:
    """Numbers, or a tensor, against those of our own."""
    torch.testing.assert_close(torch.as_tensor(found), wanted, atol=1e-5, rtol=1e-5)


def texts(figure: Figure, data: Any) -> set[str]:
    """All that stands in the panels of a figure."""
    return {box.text for say in (english, chinese) for panel in figure.draw(data, say) for box in panel.boxes}


def numbers(data: Any) -> Iterator[str]:
    """Every number in there, as matrices write it."""
    if isinstance(data, float):
        yield f"{data:.2f}".replace("-0.00", "0.00")
    elif isinstance(data, dict | list | tuple):
        for one in data.values() if isinstance(data, dict) else data:
            yield from numbers(one)


@torch.no_grad()
def stepped(name: str) -> tuple[Cell, Tensor, tuple[Tensor, ...], dict[str, Any]]:
    """A random cell, what it reads, and what passed in its step."""
    torch.manual_seed(3)
    cell = build_cell(SPECS[name], 2, 3)
    cell.bias.normal_()
    x, state = torch.randn(1, 2), tuple(torch.randn(1, 3) for _ in range(cell.states))
    return cell, x, state, one_step(name, cell, x, state)


def sets_of(cell: Cell, x: Tensor, hidden: Tensor, place: int) -> Tensor:
    """W x + U h + b of one set."""
    rows = slice(3 * place, 3 * place + 3)
    return cell.input_weight[rows] @ x[0] + cell.state_weight[rows] @ hidden + cell.bias[rows]


@torch.no_grad()
def test_gates_are_the_equations() -> None:
    cell, x, (hidden, road), told = stepped("lstm")
    out, keep, enter, new = (sets_of(cell, x, hidden[0], place) for place in range(4))
    after = keep.sigmoid() * road[0] + enter.sigmoid() * new.tanh()
    inside = {"f": keep.sigmoid(), "i": enter.sigmoid(), "c~": new.tanh(), "o": out.sigmoid(), "tanh c": after.tanh()}
    assert list(told["inside"]) == list(inside)
    for name, value in inside.items():
        near(told["inside"][name], value)
    near(told["after"]["c"], after)
    near(told["after"]["h"], out.sigmoid() * after.tanh())


@torch.no_grad()
def test_the_reset_gate_is_inside_the_product() -> None:
    cell, x, (hidden,), told = stepped("gru")
    update, reset = (sets_of(cell, x, hidden[0], place).sigmoid() for place in (0, 1))
    candidate = sets_of(cell, x, reset * hidden[0], 2).tanh()
    for name, value in {"z": update, "r": reset, "h~": candidate}.items():
        near(told["inside"][name], value)
    after = update * hidden[0] + (1 - update) * candidate
    near(told["after"]["h"], after)


def test_the_numbers_of_a_cell_are_drawn() -> None:
    data = {name: {**stepped(name)[3], "sets": spec.sets, "weights": 1} for name, spec in SPECS.items()}
    wanted = set(numbers(data))
    assert len(wanted) > 30
    assert wanted <= texts(Cells(), data)
    assert {name: one["weights"] for name, one in Cells().data().items()} == {"rnn": 18, "lstm": 72, "gru": 54}


def test_who_sees_which_inputs() -> None:
    seen = Bidirectional(tokens=4).data()["seen"]
    past = [[int(x <= y) for x in range(4)] for y in range(4)]
    future = [[int(x >= y) for x in range(4)] for y in range(4)]
    assert seen["unrolled"]["y"] == seen["stacked"]["y"] == past
    assert seen["bidirectional"] == {"→": past, "←": future, "y": [[1] * 4] * 4}
    assert seen_inputs(lambda x: x.roll(1, dims=1), torch.randn(1, 3, 2)).int().tolist() == [
        [0, 0, 1],
        [1, 0, 0],
        [0, 1, 0],
    ]


@pytest.fixture(scope="module")
def short() -> TeacherForcing:
    """So short a training that the model errs."""
    return TeacherForcing(hidden_size=16, steps=30, batch=8, letters=4, words=12)


@torch.no_grad()
def test_both_ways_to_read_are_the_models(short: TeacherForcing) -> None:
    data = short.data()
    with torch.enable_grad():
        model = learn(words_model(16), reversed_to_end, steps=30, batch=8, longest=short.longest)
    source = ids_of("".join(data["source"]))
    target = [START, *source.flip(1)[0].tolist(), END]
    memory, state, losses, said = model.encode(source), model.encode(source).state, [], []
    for fed, true in pairwise(target):
        logits, state, _ = model.step(torch.tensor([fed]), state, memory)
        losses.append(-float(logits.log_softmax(dim=-1)[0, true]))
        said.append(letters_of(logits.argmax(dim=-1))[0])
    assert data["losses"] == pytest.approx(losses, abs=1e-4)
    assert data["training"]["said"] == said[: len(data["training"]["said"])]
    assert data["training"]["fed"] == ["<s>", *reversed(data["source"])][: len(data["training"]["fed"])]
    assert data["inference"]["fed"][1:] == data["inference"]["said"][:-1]
    assert {f"{loss:.2f}" for loss in losses} <= texts(short, data)


@torch.no_grad()
def test_writing_freely_is_what_decoding_calls_sampling() -> None:
    model, source = words_model(8), torch.randint(1, 27, (3, 4))
    free = written(model, source, 5)
    nothing, dice = torch.full((3, 5), START), torch.Generator()
    near(free, model.decode(nothing, model.encode(source), sampling=1.0, generator=dice))
    assert not torch.allclose(free, forced(model, source, reversed_to_end(source)), atol=1e-3)


@torch.no_grad()
def test_the_four_steps_by_hand() -> None:
    model = words_model(8, attention={"score": "additive", "fusion": "after"})
    for weight in model.parameters():
        weight.mul_(3)
    told = watched(model, ids_of("abc"), 1)
    assert isinstance(model.attention, Attention)
    scoring = model.attention.scoring
    assert isinstance(scoring, Additive)
    query, states = torch.tensor(told["query"]), torch.tensor(told["states"])
    scores = torch.tanh(scoring.query.weight @ query + states @ scoring.key.weight.T) @ scoring.vector.weight[0]
    weights = scores.exp() / scores.exp().sum()
    context = sum(weight * state for weight, state in zip(weights, states, strict=True))
    assert isinstance(context, Tensor)
    for name, value in {"scores": scores, "weights": weights, "context": context}.items():
        near(told[name], value)
    assert told["fused"] == [*told["query"], *told["context"]]
    likely = (model.lm_head.weight @ torch.cat([query, context])).softmax(dim=-1)
    assert [one for _, one in told["likeliest"]] == pytest.approx(likely.topk(4).values.tolist(), abs=1e-5)
    figure = AttentionSteps(word="abc")
    drawn = texts(figure, {"word": list("abc"), "step": 1, **told})
    assert {f"{value:.2f}" for name in ("scores", "weights") for value in told[name]} <= drawn


def test_matrices_of_self_attention() -> None:
    figure = SelfAttention()
    data = figure.data()
    x, maps = torch.tensor(data["x"]), {name: torch.tensor(one) for name, one in data["projections"].items()}
    outputs = []
    for number, one in enumerate(data["heads"]):
        columns = slice(2 * number, 2 * number + 2)
        q, k, v = (x @ maps[name][:, columns] for name in "qkv")
        near(one["scores"], q @ k.T / 2**0.5)
        near(torch.tensor(one["weights"]).sum(dim=-1), torch.ones(3))
        outputs.append(F.scaled_dot_product_attention(q[None], k[None], v[None])[0])
        near(one["output"], outputs[-1])
    near(data["y"], torch.cat(outputs, dim=1) @ maps["o"])
    assert data["apart"] < 1e-5
    apart = {"scale", "apart"}
    assert set(numbers({name: one for name, one in data.items() if name not in apart})) <= texts(figure, data)


def test_queries_of_the_target_keys_and_values_of_the_source() -> None:
    figure = CrossAttending()
    data = figure.data()
    sides = {"query": ("decoder", "q"), "key": ("encoder", "k"), "value": ("encoder", "v")}
    first = {name: torch.tensor(value) for name, value in data["heads"][0].items()}
    for name, (side, letter) in sides.items():
        made = torch.tensor(data[side]) @ torch.tensor(data["projections"][letter])[:, :2]
        near(first[name], made)
    assert first["scores"].shape == (3, 5)
    output = F.scaled_dot_product_attention(first["query"][None], first["key"][None], first["value"][None])[0]
    near(first["output"], output)
    moved = data["moved"]
    assert moved["source"]["query"] == moved["target"]["key"] == moved["target"]["value"] == 0
    assert min(moved["target"]["query"], moved["source"]["key"], moved["source"]["value"]) > 0.01
    assert data["apart"] < 1e-5
    assert set(numbers([data["decoder"], data["encoder"], data["heads"][0]])) <= texts(figure, data)


def test_one_masked_pass_is_every_prefix() -> None:
    figure = MaskedTraining(width=8, steps=3, batch=2, window=16)
    data = figure.data()
    assert data["apart"] < 1e-6
    assert data["gradient_apart"] < 1e-4 * data["gradient"]
    assert [letter for letter, _ in data["masked"]] == [letter for letter, _ in data["prefixes"]]
    assert data["mask"] == [[int(key <= query) for key in range(6)] for query in range(6)]
    assert {f"{likely:.4f}" for _, likely in data["prefixes"]} <= texts(figure, data)


def test_without_the_mask_they_would_differ() -> None:
    model, ids = fresh(small_spec(8, 16, {"intermediate_size": 8})), torch.tensor([[5, 9, 200, 7]])
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(8)

    def peeking(model: Any, ids: Tensor) -> Tensor:
        logits: Tensor = model(ids, context=Whole())[0]
        return logits

    assert float((peeking(model, ids) - by_prefix(model, ids)).detach().abs().max()) > 1e-3
    assert float((gradients(model, ids, peeking) - gradients(model, ids, by_prefix)).abs().max()) > 1e-3


@torch.inference_mode()
def test_answers_to_prompts_are_the_models(toy_dir: Path) -> None:
    figure = InContext(model=str(toy_dir), examples=(0, 3), drawn=(0, 3))
    data = figure.data()
    model, tokenizer = load_directory(toy_dir).eval(), Tokenizer.from_directory(toy_dir)
    found = []
    for place in range(data["pairs"]):
        prompt = prompt_of(place, 3, 0)
        true = tokenizer.encode(f" {opposite_of(prompt)}", add_special_tokens=False)[0]
        found.append(float(model(torch.tensor([tokenizer.encode(prompt)]))[0, -1].softmax(dim=-1)[true]))
    assert data["likely"][1] == [3, pytest.approx(sum(found) / len(found), rel=1e-3)]
    lines = {line for one in data["prompts"] for line in one["prompt"].split("\n")}
    assert lines <= texts(figure, data)


def opposite_of(prompt: str) -> str:
    """Of the word that is asked for, from the examples of other prompts."""
    word = prompt.split("\n")[-1].removesuffix(" ->")
    told = {line for place in range(16) for line in prompt_of(place, 15, 1).split("\n")}
    return next(line.removeprefix(f"{word} -> ") for line in told if line.startswith(f"{word} -> "))


def test_no_example_is_the_question() -> None:
    for place in range(16):
        task, *examples, question = prompt_of(place, 8, 0).split("\n")
        assert len(set(examples)) == 8
        assert question.endswith(" ->")
        assert not any(example.startswith(question) for example in examples)
    assert prompt_of(3, 0, 0).split("\n") == [task, "up ->"]
