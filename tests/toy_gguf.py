"""Tiny GGUF files for tests, written by the gguf library's own writer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from tokenizers.pre_tokenizers import ByteLevel

__all__ = [
    "BYTE_LEVEL",
    "LLAMA",
    "SENTENCE_PIECE",
    "TEMPLATE",
    "interleave",
    "llama_tensors",
    "write_gguf",
    "write_llama",
]

Arrays = dict[str, np.ndarray[Any, Any]]

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA: dict[str, Any] = {
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": 16,
}


def _byte_level() -> dict[str, Any]:
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "Ġ Ġ", "1 2"]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [
        *special,
        *sorted(ByteLevel.alphabet()),
        *(merge.replace(" ", "") for merge in merges),
        "<think>",
        "[PAD9]",
    ]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 5) + [4, 5],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def _sentence_piece() -> dict[str, Any]:
    pieces = ["▁h", "el", "lo", "▁hel", "▁hello", "▁▁w", "▁w", "or", "▁wor", *"▁helowrd12\n"]
    tokens = ["<unk>", "<bos>", "<eos>", *(f"<0x{byte:02X}>" for byte in range(256)), "  ", "   ", "<b>", *pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-1000.0] * 3 + [0.0] * 256 + [-1000.0] * 3 + [-float(i) for i in range(len(pieces))],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [4] * 3 + [1] * len(pieces),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }


BYTE_LEVEL = _byte_level()
SENTENCE_PIECE = _sentence_piece()


def interleave(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Hugging Face's halves of each head to llama.cpp's neighbouring pairs."""
    split = weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1)
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(weight.shape))


def llama_tensors(seed: int = 0, *, vocab: int = 272) -> Arrays:
    """Random weights of the tiny LLaMA, by GGUF's names. The vocabulary is padded beyond the tokenizer's."""
    random = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, 64), "output_norm.weight": (64,)}
    for i in range(2):
        parts = {"attn_norm": (64,), "ffn_norm": (64,), "attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64)}
        parts |= {"attn_output": (64, 64), "ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}
        shapes |= {f"blk.{i}.{part}.weight": shape for part, shape in parts.items()}
    return {name: random.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    architecture: str,
    metadata: Mapping[str, Any],
    tensors: Arrays,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
) -> Path:
    """Writes a GGUF file; matrices are stored as `kind`, vectors as float32."""
    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        _add(writer, key, value)
    for name, values in tensors.items():
        stored = kind if values.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(name, quantize(np.ascontiguousarray(values), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    adders |= {list: writer.add_array}
    adders[type(value)](key, value)


def write_llama(
    path: Path,
    *,
    seed: int = 0,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    metadata: Mapping[str, Any] | None = None,
    tensors: Arrays | None = None,
) -> Path:
    """Writes a tiny LLaMA with a byte-level tokenizer and a ChatML template.

    Args:
        path: where.
        seed: of the random weights.
        kind: how matrices are stored.
        metadata: replaces or, with None as the value, removes keys.
        tensors: replaces or adds tensors.
    """
    keys = {key: value for key, value in (LLAMA | BYTE_LEVEL | dict(metadata or {})).items() if value is not None}
    return write_gguf(path, "llama", keys, llama_tensors(seed) | (tensors or {}), kind)
