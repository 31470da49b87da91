"""Marian: transformers' logits and gradients from our directory and theirs, whatever the sizes; what it cannot say."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM, MarianMTModel

from intaglio.checkpoints.load import load_directory
from intaglio.checkpoints.models import load_model
from intaglio.checkpoints.save import save_model
from intaglio.engine.beam import beam_search
from intaglio.engine.generate import generate
from intaglio.engine.sampling_params import SamplingParams
from intaglio.engine.session import EncoderDecoderSession
from intaglio.models.encoder_decoder import EncoderDecoder
from intaglio.specs.families import config_of, read_config
from tiny_pairs import PAIRS, padded_rows, random_pairs_model
from toy_llms import toy_tokenizer
from toy_models import change_config, change_tensors, user_error

CLOSE = 1e-5
SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 40,
    "pad_token_id": 59,  # over there its embedding has no gradient, so it occurs nowhere
    "eos_token_id": 2,
    "decoder_start_token_id": 60,
    "forced_eos_token_id": None,
}
MODELS: dict[str, dict[str, Any]] = {
    "swish, scaled": {"activation_function": "swish", "scale_embedding": True, "dropout": 0.2},
    "relu": {"activation_function": "relu", "encoder_layers": 1},
    "gelu": {},
}
SOURCES = [[7, 3, 11, 40, 2], [40, 41, 42, 43, 44, 45, 46, 47, 48, 2], [5, 2], [9, 9, 30, 31, 12, 13, 2]]
TARGETS = [[60, 8, 3, 14], [60], [60, 50, 51, 52, 53, 54, 55, 56], [60, 20, 21]]

every_model = pytest.mark.parametrize("name", MODELS)


def build(name: str = "swish, scaled", seed: int = 0) -> Any:
    """transformers' model, its weights random and large enough to matter."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    config = AutoConfig.for_model("marian", **{**SIZES, **MODELS[name]})
    model = AutoModelForSeq2SeqLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.2)
        elif parameter.requires_grad:
            parameter.data += 0.3 * torch.randn_like(parameter)
    model.final_logits_bias.normal_()
    return model


def theirs(model: Any) -> Tensor:
    """(B, T, V)"""
    source, sizes = padded_rows(SOURCES)
    target, _ = padded_rows(TARGETS)
    mask = (torch.arange(source.shape[1]) < torch.tensor(sizes)[:, None]).long()
    return model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits


def ours(model: EncoderDecoder) -> Tensor:
    source, sizes = padded_rows(SOURCES)
    target, lengths = padded_rows(TARGETS)
    return model(source, target, sizes, lengths)


def gap(one: Tensor, other: Tensor) -> float:
    """The largest difference at a real place."""
    _, lengths = padded_rows(TARGETS)
    real = torch.arange(one.shape[1]) < torch.tensor(lengths)[:, None]
    return (one - other)[real].abs().max().item()


@every_model
@torch.no_grad()
def test_their_directory_gives_their_logits_here(name: str, tmp_path: Path) -> None:
    model = build(name)
    model.save_pretrained(tmp_path)
    mine = load_model(tmp_path)
    assert isinstance(mine, EncoderDecoder)
    assert gap(ours(mine), theirs(model)) < CLOSE
    assert mine.spec.num_parameters() == sum(p.numel() for p in model.parameters() if p.requires_grad)


@every_model
@torch.no_grad()
def test_our_directory_opens_there_and_here(name: str, tmp_path: Path) -> None:
    model = build(name)
    model.save_pretrained(tmp_path / "theirs")
    mine = load_directory(tmp_path / "theirs")
    save_model(mine, tmp_path / "ours")
    again, report = MarianMTModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert gap(theirs(again.eval()), theirs(model)) < CLOSE
    assert type(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")).__name__ == "MarianMTModel"
    back = load_directory(tmp_path / "ours")
    assert back.spec == mine.spec
    assert torch.equal(ours(back), ours(mine))


def test_gradients_are_theirs(tmp_path: Path) -> None:
    """Their gradients, saved as if they were weights, come through the weight map: it is linear."""
    model = build()
    model.save_pretrained(tmp_path / "weights")
    mine = load_directory(tmp_path / "weights")
    _, lengths = padded_rows(TARGETS)
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    labels = torch.randint(0, 61, (int(real.sum()),), generator=torch.Generator().manual_seed(1))
    for logits in (theirs(model), ours(mine)):
        F.cross_entropy(logits[real], labels).backward()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.grad
    model.save_pretrained(tmp_path / "gradients")
    expected = dict(load_directory(tmp_path / "gradients").named_parameters())
    assert sum(gradient.abs().max() > 1e-3 for gradient in expected.values()) > 40
    for name, parameter in mine.named_parameters():
        assert (parameter.grad - expected[name]).abs().max() < CLOSE, name


def test_an_older_config_says_the_same(tmp_path: Path) -> None:
    build().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    older = {
        "add_final_layer_norm": False,
        "normalize_before": False,
        "static_position_embeddings": True,
        "num_beams": 6,
        "num_hidden_layers": 3,
        "bad_words_ids": [[59]],
    }
    assert read_config({**config, **older}) == read_config(config)
    for key, value in {"normalize_before": True, "share_encoder_decoder_embeddings": False}.items():
        with user_error(f"unsupported value {key}"):
            read_config({**config, key: value})
    with user_error("unsupported value decoder_vocab_size = 62"):
        read_config({**config, "decoder_vocab_size": 62})


def test_copies_of_the_embeddings_must_be_copies(tmp_path: Path) -> None:
    build().save_pretrained(tmp_path)
    mine = load_directory(tmp_path)
    change_tensors(tmp_path, lm_head__weight=mine.lm_head.weight.detach().clone())
    change_tensors(tmp_path, model__encoder__embed_positions__weight=torch.zeros(40, 32))
    assert torch.equal(ours(load_directory(tmp_path)), ours(mine))
    change_tensors(tmp_path, lm_head__weight=mine.lm_head.weight.detach() + 1)
    with user_error("lm_head.weight", "ties"):
        load_directory(tmp_path)


@pytest.mark.parametrize("spec", PAIRS.values(), ids=PAIRS)
def test_what_no_family_says_is_written_as_ours(spec: Any, tmp_path: Path) -> None:
    config = config_of(spec)
    assert read_config(config) == spec
    assert (config["model_type"], config["architectures"]) == ("intaglio", ["IntaglioEncoderDecoder"])
    model = random_pairs_model(spec)
    save_model(model, tmp_path / "m")
    back = load_model(tmp_path / "m")
    assert isinstance(back, EncoderDecoder)
    assert back.spec == spec
    assert torch.equal(
        back(torch.tensor([SOURCES[0]]), torch.tensor([[1, 5]])),
        model(torch.tensor([SOURCES[0]]), torch.tensor([[1, 5]])),
    )


def test_the_paper_in_halves_with_a_bias_is_a_marian() -> None:
    spec = PAIRS["2017"].updated(logits_bias=True, positions={"kind": "sinusoidal", "layout": "halves"})
    assert config_of(spec)["model_type"] == "marian"
    assert config_of(spec.updated(logits_bias=False))["model_type"] == "intaglio"


def test_a_missing_start_token(tmp_path: Path) -> None:
    build().save_pretrained(tmp_path)
    change_config(tmp_path, decoder_start_token_id=...)
    with user_error("missing key 'decoder_start_token_id'"):
        load_directory(tmp_path)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, EncoderDecoder]:
    """Ours has half learned to turn a source round, so that texts differ and end; theirs is read from its folder."""
    folder, model = tmp_path_factory.mktemp("marian"), build("gelu")
    model.save_pretrained(folder / "theirs")
    mine = half_taught(load_model(folder / "theirs"))
    save_model(mine, folder / "ours", generation_config={"eos_token_id": 2, "pad_token_id": 59})
    return MarianMTModel.from_pretrained(folder / "ours").eval(), mine


class TestTranslating:
    """transformers' `generate`, greedy and with beams, from its directory here and from ours there."""

    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"num_beams": 4},
            {"num_beams": 4, "length_penalty": 0.6},
            {"num_beams": 4, "length_penalty": 2.0},
            {"num_beams": 4, "length_penalty": 0.0},
            {"num_beams": 4, "length_penalty": -1.0},
            {"num_beams": 3, "early_stopping": True},
            {"num_beams": 4, "forbidden_token_ids": (59, 20)},
        ],
        ids=str,
    )
    def test_texts_are_theirs(self, fields: dict[str, Any], pair: tuple[Any, EncoderDecoder]) -> None:
        theirs, mine = pair
        params = SamplingParams(temperature=0, max_tokens=6, **fields)
        expected = their_texts(theirs, params)
        if params.num_beams == 1:
            assert greedy_texts(mine, params) == [text for text, _ in expected]
            return
        rows = len(SOURCES)
        found = beam_search(EncoderDecoderSession(mine, [6] * rows), SOURCES, params, [2], [6] * rows)
        assert [one[0].ids for one in found] == [text for text, _ in expected]
        assert [one[0].score for one in found] == pytest.approx([score for _, score in expected], abs=1e-4)

    def test_texts_end_early_and_late(self, pair: tuple[Any, EncoderDecoder]) -> None:
        params = SamplingParams(temperature=0, max_tokens=6, num_beams=4)
        lengths = [len(text) for text, _ in their_texts(pair[0], params)]
        assert len(set(lengths)) > 2
        assert max(lengths) == 6


def half_taught(model: EncoderDecoder, steps: int = 60) -> EncoderDecoder:
    """The model after a few steps towards writing sources backwards."""
    torch.manual_seed(0)
    dice = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.reset_parameters()
    nn.init.normal_(model.lm_head.weight, std=0.2, generator=dice)
    optimizer = torch.optim.Adam(model.train().parameters(), lr=3e-3)
    for _ in range(steps):
        rows = [
            torch.randint(3, 20, (int(n),), generator=dice).tolist() for n in torch.randint(2, 9, (32,), generator=dice)
        ]
        source, sizes = padded_rows([[*row, 2] for row in rows])
        target, lengths = padded_rows([[60, *row[::-1]] for row in rows])
        labels, _ = padded_rows([[*row[::-1], 2] for row in rows], pad=-100)
        loss = F.cross_entropy(model(source, target, sizes, lengths).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def their_texts(model: Any, params: SamplingParams) -> list[tuple[list[int], float]]:
    """What transformers makes of each source, up to its end, and the score that beam search gave it."""
    source, sizes = padded_rows(SOURCES, pad=59)
    more = {"length_penalty": params.length_penalty} if params.num_beams > 1 else {}
    made = model.generate(
        input_ids=source,
        attention_mask=(torch.arange(source.shape[1]) < torch.tensor(sizes)[:, None]).long(),
        do_sample=False,
        num_beams=params.num_beams,
        early_stopping=params.early_stopping,
        max_new_tokens=params.max_tokens,
        bad_words_ids=[[token] for token in params.forbidden_token_ids] or None,
        return_dict_in_generate=True,
        output_scores=True,
        **more,
    )
    scores = made.sequences_scores.tolist() if params.num_beams > 1 else [0.0] * len(SOURCES)
    texts = [row[1 : row.index(2) + 1] if 2 in row else row[1:] for row in made.sequences.tolist()]
    return list(zip(texts, scores, strict=True))


def greedy_texts(model: EncoderDecoder, params: SamplingParams) -> list[list[int]]:
    texts: list[list[int]] = [[] for _ in SOURCES]
    for piece in generate(model, toy_tokenizer(eos_token="<|im_end|>"), SOURCES, [params] * len(SOURCES)):
        texts[piece.row].append(piece.token_id)
    return texts
