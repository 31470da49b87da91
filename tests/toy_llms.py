"""Tiny models in whole directories, for tests that generate: one of random weights, and one that says what it is told.

Both have the byte-level tokenizer of `toy_tokenizers`, a ChatML template, and a vocabulary padded beyond the
tokenizer's, as many real models have.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from intaglio.checkpoints.save import save_model
from intaglio.models.decoder import Decoder
from intaglio.specs import DecoderSpec
from intaglio.text.tokenizer import Tokenizer
from tiny_specs import block, decoder
from toy_gguf import TEMPLATE
from toy_tokenizers import byte_level

__all__ = ["ANSWER", "PADDED_VOCAB", "random_model", "save_parrot", "save_toy", "toy_tokenizer"]

PADDED_VOCAB = 320
ANSWER = "QUICK BROWNé"
"""What the parrot answers; no token occurs twice, and the last letter takes two."""


def toy_tokenizer(**config: Any) -> Tokenizer:
    """The tokenizer; `<|im_end|>` ends a text, and `<|endoftext|>` too."""
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>", **config}
    return Tokenizer(byte_level(), names, chat_templates=TEMPLATE, eos_token_ids=[0])


def random_model(spec: DecoderSpec, seed: int = 0) -> Decoder:
    """A model whose likeliest tokens are no near ties."""
    torch.set_num_threads(1)
    dice = torch.Generator().manual_seed(seed)
    model = Decoder(spec).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.3, generator=dice)
    return model


def save_toy(path: Path, *, context: int = 256) -> Path:
    """A LLaMA of two layers with random weights."""
    layer = block(repeat=2, attention={"num_heads": 4, "num_kv_heads": 2, "rope": {}})
    spec = decoder(layer, vocab_size=PADDED_VOCAB, max_position_embeddings=context)
    save_model(random_model(spec), path, toy_tokenizer(), {"eos_token_id": [2, 0]})
    return path


def save_parrot(path: Path, *, context: int = 96, answer: str = ANSWER) -> Path:
    """A LLaMA whose every token has one successor: what follows a line break is `answer`, then the end of the turn.

    Its one layer adds nothing, its embeddings are the unit vectors, and its output matrix is the table of successors.
    """
    tokenizer = toy_tokenizer()
    layer = block(feed_forward={"intermediate_size": 4, "activation": "silu", "gated": True})
    size = PADDED_VOCAB
    model = Decoder(decoder(layer, vocab_size=size, hidden_size=size, max_position_embeddings=context)).eval()
    chain = [*tokenizer.encode("\n"), *tokenizer.encode(answer), *tokenizer.encode("<|im_end|>")]
    assert len(set(chain)) == len(chain), "a token has one successor"
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.zero_()
        model.embed_tokens.weight.copy_(torch.eye(size))
        for token, following in pairwise(chain):
            model.lm_head.weight[following, token] = 10.0
    save_model(model, path, tokenizer, {"eos_token_id": [2, 0]})
    return path
