"""Our BERT beside the reference implementation, and which models are its."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import BertModel

from intaglio.errors import UserError
from intaglio.retrieval import bert
from intaglio.retrieval.bert import BertEmbedder, is_ours
from tiny_bert import save_tiny_bert, write

TEXTS = ["a b c d e f g h", "b", "", "j i h", "c z", "a b c d e f g h i j a b c"]  # the last is cut off


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return save_tiny_bert(tmp_path)


def expected(directory: Path, first: bool = False) -> np.ndarray:
    model, rows = BertModel.from_pretrained(directory).eval(), []
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.enable_truncation(10)
    for text in TEXTS:
        with torch.no_grad():
            features = model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0]
        rows.append(torch.nn.functional.normalize(features[0] if first else features.mean(dim=0), dim=0).numpy())
    return np.stack(rows)


@pytest.mark.parametrize("budget", [1, 4096])
def test_the_reference_in_fp32(directory: Path, monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    monkeypatch.setattr(bert, "_bf16_is_fast", lambda: False)
    embedder = BertEmbedder(directory, "tiny")
    monkeypatch.setattr(bert, "_BUDGET", budget)
    monkeypatch.setattr(bert, "_TOGETHER", 4)
    vectors = embedder.embed(TEXTS, query=False)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected(directory), atol=2e-6)
    assert embedder.embed([], query=True).shape == (0, 32)


def test_the_first_token_where_the_model_pools_so(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bert, "_bf16_is_fast", lambda: False)
    write(directory / "1_Pooling" / "config.json", {"pooling_mode_cls_token": True})
    assert is_ours(directory)
    vectors = BertEmbedder(directory, "tiny").embed(TEXTS, query=False)
    np.testing.assert_allclose(vectors, expected(directory, first=True), atol=2e-6)


def test_bf16_is_near(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bert, "_bf16_is_fast", lambda: True)
    vectors = BertEmbedder(directory, "tiny").embed(TEXTS, query=False)
    assert ((vectors * expected(directory)).sum(axis=1) > 0.999).all()


def test_other_models_are_the_librarys(directory: Path) -> None:
    assert is_ours(directory)
    write(directory / "config_sentence_transformers.json", {"prompts": {"query": "Query: "}})
    assert not is_ours(directory)
    write(directory / "config_sentence_transformers.json", {"prompts": {"query": ""}})
    assert is_ours(directory)
    config = json.loads((directory / "config.json").read_text())
    write(directory / "config.json", config | {"model_type": "roberta"})
    assert not is_ours(directory)


def test_weights_of_another_size(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    write(directory / "config.json", config | {"intermediate_size": 64})
    with pytest.raises(UserError, match="other than its config"):
        BertEmbedder(directory, "tiny")
    write(directory / "config.json", config | {"num_hidden_layers": 3})
    with pytest.raises(UserError, match=r"layer\.2.*missing"):
        BertEmbedder(directory, "tiny")
