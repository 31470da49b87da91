"""A tiny BERT of random weights, as sentence-transformers saves one."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel

__all__ = ["CONFIG", "LETTERS", "save_tiny_bert", "save_tokenizer", "write"]

LETTERS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *"abcdefghij"]
CONFIG = {
    "vocab_size": len(LETTERS), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 16, "initializer_range": 0.5,
}  # fmt: skip


def save_tiny_bert(directory: Path) -> Path:
    """Fills the directory: mean pooling, normalised, ten tokens a text."""
    torch.manual_seed(0)
    BertModel(BertConfig(**CONFIG)).save_pretrained(directory)
    save_tokenizer(directory)
    kinds = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate([("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")])
    ]
    write(directory / "modules.json", kinds)
    pooling = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False, "word_embedding_dimension": 32}
    write(directory / "1_Pooling" / "config.json", pooling)
    write(directory / "sentence_bert_config.json", {"max_seq_length": 10})
    (directory / "2_Normalize").mkdir()
    return directory


def save_tokenizer(directory: Path) -> None:
    """Words are letters, parted by spaces; one text or a pair of them."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(LETTERS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    tokenizer.save(str(directory / "tokenizer.json"))
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs}
    write(directory / "tokenizer_config.json", kind | names)


def write(path: Path, value: Any) -> None:
    """Writes a JSON file and its folder."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))
