"""Heads: read by position, whatever the padding; opened by transformers with equal scores, and read back."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from intaglio.checkpoints.classifiers import load_classifier, save_classifier
from intaglio.checkpoints.load import load_directory
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier, decoder_of, init_head, last_real
from intaglio.parts.context import PAD, positions_of
from intaglio.specs.families import read_config
from intaglio.text.tokenizer import Tokenizer
from toy_models import LLAMA_CONFIG, change_config, toy_model, user_error
from toy_tokenizers import byte_level

GPT: dict[str, Any] = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
SIZES: dict[str, Any] = {key: value for key, value in LLAMA_CONFIG.items() if key != "model_type"}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA_CONFIG,
    "mistral": {**SIZES, "model_type": "mistral", "sliding_window": 8},
    "qwen2": {**SIZES, "model_type": "qwen2"},
    "gemma3_text": {
        **SIZES,
        "model_type": "gemma3_text",
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gpt2": {**GPT, "model_type": "gpt2"},
    "openai-gpt": {**GPT, "model_type": "openai-gpt"},
    "gpt_neox": {
        **{key: value for key, value in SIZES.items() if key != "num_key_value_heads"},
        "model_type": "gpt_neox",
    },
}
LABELS = ("cloud", "rain", "sun")
TEXTS = [[5, 9, 2, 31, 44, 2], [7], [8, 8, 1, 2, 60, 3, 17, 4, 2]]


def classifier(name: str = "llama", labels: tuple[str, ...] = LABELS) -> SequenceClassifier:
    """Three classes on a tiny decoder with weights large enough to matter."""
    torch.manual_seed(3)
    model = SequenceClassifier(Decoder(read_config(CONFIGS[name])), len(labels), labels).eval()
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.2
    model.tie_weights()
    return model


@torch.no_grad()
def one_by_one(model: SequenceClassifier) -> Tensor:
    """(D, C)"""
    return torch.cat([model(torch.tensor([text])) for text in TEXTS])


def padded(side: str, pad: int, extra: int = 0) -> tuple[Tensor, Tensor]:
    """The texts as rows (B, T), and where they are real."""
    width = max(map(len, TEXTS)) + extra
    rows, masks = [], []
    for text in TEXTS:
        fill = width - len(text)
        rows.append([pad] * fill + text if side == "left" else text + [pad] * fill)
        masks.append([0] * fill + [1] * len(text) if side == "left" else [1] * len(text) + [0] * fill)
    return torch.tensor(rows), torch.tensor(masks)


@pytest.mark.parametrize("name", ["llama", "openai-gpt"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pad", [0, 2])  # 2 ends two of the texts: a pad token that is the EOS
@pytest.mark.parametrize("extra", [0, 3])
def test_padding_makes_no_difference(name: str, side: str, pad: int, extra: int) -> None:
    model = classifier(name)
    ids, mask = padded(side, pad, extra)
    with torch.no_grad():
        found = model(ids, positions_of(mask))
    torch.testing.assert_close(found, one_by_one(model), rtol=0, atol=1e-5)


def test_case_17_in_numbers() -> None:
    """Ids [5, eos, 6, eos, pad] with pad = eos are read at place 3; [pad, 5, 6] at place 2."""
    mask = torch.tensor([[1, 1, 1, 1, 0]])
    assert last_real(positions_of(mask)).tolist() == [3]
    assert last_real(torch.tensor([[PAD, 0, 1], [0, 1, PAD], [0, PAD, 1]])).tolist() == [2, 1, 2]


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
def test_packed_is_one_by_one(name: str) -> None:
    model = classifier(name)
    with torch.no_grad():
        found = model.packed(torch.tensor([[token for text in TEXTS for token in text]]), [len(text) for text in TEXTS])
    torch.testing.assert_close(found, one_by_one(model), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_gives_equal_scores(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    model = classifier(name)
    save_classifier(model, tmp_path / "m")
    theirs, report = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "m", output_loading_info=True, dtype=torch.float32
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert json.loads((tmp_path / "m" / "config.json").read_text())["architectures"] == [type(theirs).__name__]
    assert theirs.config.id2label == dict(enumerate(LABELS))
    with torch.no_grad():
        found = torch.cat([theirs.eval()(torch.tensor([text])).logits for text in TEXTS])
    assert (found - one_by_one(model)).abs().max() < 1e-5
    theirs.save_pretrained(tmp_path / "theirs")
    back = load_classifier(tmp_path / "theirs")
    assert back.labels == LABELS
    torch.testing.assert_close(one_by_one(back), one_by_one(model), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_transformers_pads_as_we_say(name: str, tmp_path: Path) -> None:
    """A batch, filled up by the tokenizer as it was saved: the token before the EOS is not read."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    ends = {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    tokenizer = Tokenizer(byte_level(), ends)
    config = read_config({**CONFIGS[name], "vocab_size": tokenizer.vocab_size})
    torch.manual_seed(0)
    model = SequenceClassifier(Decoder(config), 2).eval()
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.2
    model.tie_weights()
    save_classifier(model, tmp_path / "m", tokenizer)
    saved = json.loads((tmp_path / "m" / "config.json").read_text())
    assert saved["pad_token_id"] not in (None, saved["eos_token_id"])
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "m", dtype=torch.float32).eval()
    texts = ["the user says hi<|endoftext|>", "hi<|endoftext|>"]
    batch = AutoTokenizer.from_pretrained(tmp_path / "m")(texts, padding=True, return_tensors="pt")
    assert saved["pad_token_id"] in batch["input_ids"][1].tolist()
    with torch.no_grad():
        ours = torch.cat([model(torch.tensor([tokenizer.encode(text)])) for text in texts])
        found = theirs(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    torch.testing.assert_close(found, ours, rtol=0, atol=1e-5)


def test_without_a_free_token_there_is_no_padding(tmp_path: Path) -> None:
    tokenizer = Tokenizer(byte_level(("<|endoftext|>",)), {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"})
    model = SequenceClassifier(toy_model(vocab_size=tokenizer.vocab_size), 2)
    save_classifier(model, tmp_path / "m", tokenizer)
    assert json.loads((tmp_path / "m" / "config.json").read_text())["pad_token_id"] is None
    assert Tokenizer.from_directory(tmp_path / "m").pad_token is None


def test_it_reads_back_what_no_family_says(tmp_path: Path) -> None:
    spec = read_config(LLAMA_CONFIG).updated(logit_softcap=3.0)
    model = SequenceClassifier(Decoder(spec).eval(), 1)
    save_classifier(model, tmp_path / "m")
    back = load_classifier(tmp_path / "m")
    assert (back.spec, back.labels) == (spec, ("LABEL_0",))
    assert torch.equal(one_by_one(back), one_by_one(model))


def test_dropped_outputs_are_only_the_outputs() -> None:
    model, tied = classifier("llama"), classifier("gpt2")
    for one in (model, tied):
        before = one_by_one(one)
        one.drop_outputs()
        assert torch.equal(one_by_one(one), before)
    assert "decoder.lm_head.weight" not in dict(model.named_parameters())
    assert tied.decoder.lm_head.weight is tied.decoder.embed_tokens.weight
    with pytest.raises(NotImplementedError):
        model.decoder(torch.tensor([[1]]))


def test_a_new_head_depends_on_the_seed_alone() -> None:
    heads = [classifier().score.weight for _ in range(3)]
    for head, seed in zip(heads, (1, 1, 2), strict=True):
        model = classifier()
        init_head(model, seed)
        head.data = model.score.weight.data
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert 0.005 < heads[0].std().item() < 0.04


def test_what_is_under_a_head() -> None:
    model = classifier()
    assert decoder_of(model) is model.decoder is decoder_of(model.decoder)


def test_a_classifier_is_no_language_model_nor_the_other_way_round(tmp_path: Path) -> None:
    save_classifier(classifier(), tmp_path / "m")
    with user_error("a classifier", "load_classifier"):
        load_directory(tmp_path / "m")
    from intaglio.checkpoints.save import save_model

    save_model(toy_model(), tmp_path / "plain")
    with user_error("no classifier", "score.weight"):
        load_classifier(tmp_path / "plain")


def test_names_must_fit_the_head(tmp_path: Path) -> None:
    save_classifier(classifier(), tmp_path / "m")
    change_config(tmp_path / "m", id2label={"0": "cloud"})
    with user_error("id2label", "3"):
        load_classifier(tmp_path / "m")
    change_config(tmp_path / "m", id2label=...)
    assert load_classifier(tmp_path / "m").labels == ("LABEL_0", "LABEL_1", "LABEL_2")
