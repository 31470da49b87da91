"""Models that the library runs: those of sentence-transformers that are not ours, and its cross-encoders."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from intaglio.errors import UserError
from intaglio.retrieval import bert
from intaglio.retrieval.bert import BertEmbedder
from intaglio.retrieval.embedder import load_embedder
from intaglio.retrieval.rerank import CrossEncoderReranker
from tiny_bert import CONFIG, LETTERS, save_tiny_bert, save_tokenizer, write

pytest.importorskip("sentence_transformers")


def test_a_model_with_prompts_puts_them_before_questions_and_passages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setattr(bert, "_bf16_is_fast", lambda: False)
    ours = BertEmbedder(save_tiny_bert(tmp_path), "tiny")
    write(tmp_path / "config_sentence_transformers.json", {"prompts": {"query": "a b ", "document": "c "}})
    theirs = load_embedder(str(tmp_path))
    assert (theirs.name, theirs.dimension) == (str(tmp_path.resolve()), ours.dimension)
    np.testing.assert_allclose(
        theirs.embed(["d e", "f"], query=True), ours.embed(["a b d e", "a b f"], query=True), atol=2e-6
    )
    np.testing.assert_allclose(theirs.embed(["d e"], query=False), ours.embed(["c d e"], query=False), atol=2e-6)
    assert theirs.embed([], query=False).shape == (0, ours.dimension)


def test_a_cross_encoder_scores_pairs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**CONFIG, num_labels=1)).eval()
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    rows = [("a b", "c d e"), ("a b", "j")]
    with torch.no_grad():
        wanted = [torch.sigmoid(model(**_pair(question, passage)).logits).item() for question, passage in rows]
    assert CrossEncoderReranker(str(tmp_path)).scores("a b", ["c d e", "j"]) == pytest.approx(wanted, abs=1e-6)


def _pair(question: str, passage: str) -> dict[str, torch.Tensor]:
    """`[CLS] question [SEP] passage [SEP]`, of two kinds."""
    first = [1, *map(LETTERS.index, question.split()), 2]
    second = [*map(LETTERS.index, passage.split()), 2]
    kinds = [0] * len(first) + [1] * len(second)
    return {"input_ids": torch.tensor([first + second]), "token_type_ids": torch.tensor([kinds])}


def test_no_such_cross_encoder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no cross-encoder"):
        CrossEncoderReranker(str(tmp_path / "none"))
