"""`intaglio generate` with models that are no decoders: answers, beam search, alignments, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from intaglio import LLM, SamplingParams
from intaglio.checkpoints.save import save_model
from intaglio.files import read_json, write_json
from intaglio.models.build import build_model
from intaglio.models.init import init_weights
from intaglio.specs import validate_model
from intaglio.text.whole_units import characters_of
from running import Run

SOURCE = "三月 3rd"
STACK = {
    "layers": [
        {
            "norm": {"kind": "layer_norm"},
            "placement": "post",
            "attention": {"num_heads": 2},
            "feed_forward": {"intermediate_size": 16, "activation": "relu", "bias": True},
        }
    ]
}
CELL = {"embedding_size": 8, "hidden_size": 12, "cell": {"kind": "gru"}}
SPECS: dict[str, dict[str, Any]] = {
    "recurrent": {"kind": "recurrent", **CELL},
    "seq2seq": {"kind": "seq2seq", **CELL},
    "attention": {"kind": "seq2seq", **CELL, "attention": {"score": "additive"}},
    "transformer": {
        "kind": "encoder_decoder",
        "hidden_size": 8,
        "max_position_embeddings": 20,
        "encoder": STACK,
        "decoder": STACK,
    },
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A directory for each kind of model, with a tokenizer of characters."""
    tokenizer = characters_of([SOURCE, "0123456789-"])
    folder = tmp_path_factory.mktemp("kinds")
    for name, fields in SPECS.items():
        start = {} if name == "recurrent" else {"start_token_id": tokenizer.bos_token_id}
        model: Any = build_model(validate_model({"vocab_size": tokenizer.vocab_size, **start, **fields}, name))
        init_weights(model, 3)
        with torch.no_grad():  # so that the likeliest token is no near tie
            for weight in model.parameters():
                weight.mul_(8)
        save_model(model, folder / name, tokenizer)
    return {name: folder / name for name in SPECS}


@pytest.mark.parametrize("name", SPECS)
def test_every_kind_of_model_answers(run: Run, folders: dict[str, Path], name: str) -> None:
    llm = LLM(folders[name])
    expected = llm.generate(SOURCE, SamplingParams(temperature=0, max_tokens=9))[0]
    ran = run("generate", folders[name], SOURCE, "--max-tokens", 9, "--json")
    assert json.loads(ran.out)["token_ids"] == expected.token_ids
    assert run("generate", folders[name], SOURCE, "--max-tokens", 9).out == expected.text + "\n"


def test_a_target_may_have_its_own_context_by_default(run: Run, folders: dict[str, Path]) -> None:
    report = json.loads(run("generate", folders["transformer"], SOURCE, "--json").out)
    assert report["completion_tokens"] <= 20
    refusal = run("generate", folders["transformer"], SOURCE, "--max-tokens", 21).refusal
    assert "21 tokens do not fit into a context of 20" in refusal
    unbounded = json.loads(run("generate", folders["seq2seq"], SOURCE, "--json").out)
    assert unbounded["completion_tokens"] <= 256


@pytest.mark.parametrize("name", ["seq2seq", "transformer"])
def test_beams_are_searched(run: Run, folders: dict[str, Path], name: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=9, num_beams=3, length_penalty=0.5)
    (expected,) = LLM(folders[name]).generate(SOURCE, params)
    options = ("--max-tokens", 9, "--num-beams", 3, "--length-penalty", 0.5)
    ran = run("generate", folders[name], SOURCE, *options)
    assert ran.out == expected.text + "\n"
    assert "first after" not in ran.err
    assert json.loads(run("generate", folders[name], SOURCE, *options, "--json").out)["text"] == expected.text


def test_what_the_directory_recommends_is_done_until_the_user_says_otherwise(
    run: Run, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.symlink_to(folders["attention"])
    config = folder / "generation_config.json"
    before = read_json(config)
    llm = LLM(folder)

    def ids(*more: object) -> Any:
        return json.loads(run("generate", folder, SOURCE, "--max-tokens", 9, "--json", *more).out)["token_ids"]

    def made(**fields: Any) -> list[int]:
        return llm.generate(SOURCE, SamplingParams(max_tokens=9, temperature=0, **fields))[0].token_ids

    try:
        write_json(config, {**before, "num_beams": 3, "length_penalty": -2.0})
        beams = made(num_beams=3, length_penalty=-2.0)
        assert beams != made()  # else nothing below could fail
        assert ids() == beams
        assert ids("--num-beams", 1) == ids("--temperature", 0) == made()
        assert ids("--num-beams", 2, "--length-penalty", 1) == made(num_beams=2)
        write_json(config, {**before, "repetition_penalty": 5.0})
        assert ids() == made(repetition_penalty=5.0)
        assert ids("--repetition-penalty", 1) == made()
        write_json(config, {**before, "do_sample": True, "temperature": 3.0, "top_k": 4})
        drawn = llm.generate(SOURCE, SamplingParams(max_tokens=9, temperature=3.0, top_k=4, seed=7))[0].token_ids
        assert drawn != made()
        assert ids("--seed", 7) == drawn
        assert ids("--temperature", 0) == made()
    finally:
        write_json(config, before)


def test_an_alignment_is_drawn(run: Run, folders: dict[str, Path], tmp_path: Path) -> None:
    for more in ((), ("--json",), ("--num-beams", 2)):
        picture = tmp_path / f"{len(more)}.png"
        ran = run("generate", folders["attention"], SOURCE, "--max-tokens", 5, "--show-attention", picture, *more)
        assert ran.status == 0, ran
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_an_alignment_has_a_row_for_each_token_of_the_answer(
    run: Run, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("intaglio.plots.draw_heat_map", lambda *given: drawn.append(given))
    options = ("--max-tokens", 5, "--json", "--show-attention", tmp_path / "a.png")
    report = json.loads(run("generate", folders["attention"], SOURCE, *options).out)
    ((_, weights, rows, columns),) = drawn
    llm = LLM(folders["attention"])
    assert columns == list(SOURCE)
    assert rows == [llm.tokenizer.decode([i]) or llm.tokenizer.token(i) for i in report["token_ids"]]
    assert torch.tensor(weights).sum(dim=1).allclose(torch.ones(len(rows)))
    # the second row is what the decoder looks at when it has read the first token
    memory = llm.model.encode(torch.tensor([llm.tokenizer.encode(SOURCE)]))
    start = torch.tensor([llm.model.spec.start_token_id])
    _, state, first = llm.model.step(start, memory.state, memory)
    _, _, second = llm.model.step(torch.tensor(report["token_ids"][:1]), state, memory)
    assert torch.tensor(weights[:2]).allclose(torch.cat((first, second)), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("seq2seq", ["--show-attention", "a.png"], "--show-attention: this model has no alignment to draw"),
        ("recurrent", ["--show-attention", "a.png"], "this model has no alignment to draw"),
        ("transformer", ["--show-attention", "a.png"], "it is for a Seq2Seq with attention"),
        ("seq2seq", ["--length-penalty", "0.5"], "length_penalty has no effect with num_beams 1"),
        ("seq2seq", ["--num-beams", "2", "--top-k", "3"], "top_k has no effect with num_beams 2"),
        ("seq2seq", ["--num-beams", "2", "--temperature", "1"], "temperature must be 0"),
        ("seq2seq", ["--num-beams", "0"], "'--num-beams'"),
        ("seq2seq", ["--chat"], "the tokenizer has no chat template"),
    ],
)
def test_what_is_refused(run: Run, folders: dict[str, Path], name: str, arguments: list[str], message: str) -> None:
    assert message in run("generate", folders[name], SOURCE, *arguments).refusal


def test_one_prompt_has_one_picture(run: Run, folders: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text(SOURCE)
    refusal = run("generate", folders["attention"], "--file", file, "--show-attention", tmp_path / "a.png").refusal
    assert "one prompt has one picture" in refusal


@pytest.mark.parametrize("name", SPECS)
def test_a_model_that_cannot_chat_says_so(run: Run, folders: dict[str, Path], name: str) -> None:
    assert "the tokenizer has no chat template" in run("chat", folders[name], stdin="hello\n").refusal
    assert run("convert", folders[name], folders[name].with_suffix(".gguf")).refusal
