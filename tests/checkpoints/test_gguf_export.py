"""A model written as GGUF is the model that is read again, logits, ids and chats; what cannot be said is named."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
import torch
from tokenizers import models as token_models
from tokenizers import pre_tokenizers

from intaglio.checkpoints.convert import convert_gguf, gguf_tokenizer
from intaglio.checkpoints.gguf import open_gguf
from intaglio.checkpoints.gguf_export import export_gguf
from intaglio.checkpoints.load import load_gguf
from intaglio.checkpoints.save import save_model
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.specs.families import read_config
from intaglio.text.chat import render_chat
from intaglio.text.tokenizer import Tokenizer
from tiny_specs import block, decoder
from toy_gguf import BYTE_LEVEL, SENTENCE_PIECE, llama_tensors, write_llama
from toy_llms import random_model, toy_tokenizer
from toy_tokenizers import byte_level

ROOM = toy_tokenizer().num_ids + 7
SIZES: dict[str, Any] = {
    "vocab_size": ROOM,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
GEMMA = {
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 4,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
}
SCALED = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
EXPERTS = {"num_experts_per_tok": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **SIZES},
    "llama, tied": {"model_type": "llama", **SIZES, "tie_word_embeddings": True, "head_dim": 32},
    "llama, biases": {"model_type": "llama", **SIZES, "attention_bias": True, "mlp_bias": True},
    "llama 3": {"model_type": "llama", **SIZES, "rope_scaling": {"rope_type": "llama3", **SCALED}},
    "llama, linear": {"model_type": "llama", **SIZES, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "mistral": {"model_type": "mistral", **SIZES, "sliding_window": 4},
    "mixtral": {"model_type": "mixtral", **SIZES, **EXPERTS, "num_local_experts": 3},
    "qwen2": {"model_type": "qwen2", **SIZES, "use_sliding_window": False},
    "qwen3": {"model_type": "qwen3", **SIZES, "head_dim": 32},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        **SIZES,
        **EXPERTS,
        "num_experts": 3,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "gemma2": {
        "model_type": "gemma2",
        **SIZES,
        **GEMMA,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3": {"model_type": "gemma3_text", **SIZES, **GEMMA, "num_hidden_layers": 7},
    "gpt2": {"model_type": "gpt2", "vocab_size": ROOM, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
}


def made(name: str) -> Decoder:
    """Random weights that F16 holds exactly."""
    spec = read_config(dict(CONFIGS[name]))
    return random_model(spec).half().float()


def saved(model: Any, path: Path, tokenizer: Tokenizer | None = None) -> Path:
    save_model(model, path, tokenizer or toy_tokenizer())
    return path


@torch.no_grad()
def difference(one: Decoder, other: Decoder) -> float:
    ids = torch.randint(0, ROOM, (2, 20), generator=torch.Generator().manual_seed(0))
    wanted = one(ids)
    return float((wanted - other(ids)).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("name", CONFIGS)
def test_a_family_comes_back_with_equal_logits(name: str, tmp_path: Path) -> None:
    model = made(name)
    export_gguf(saved(model, tmp_path / "ours"), tmp_path / "m.gguf")
    again = load_gguf(tmp_path / "m.gguf", "float32")
    assert again.spec == model.spec
    assert difference(model, again) < (1e-6 if name.startswith("gemma") else 1e-9)  # 1 + w rounds


def test_8_bits_are_the_librarys_and_near(tmp_path: Path) -> None:
    model = made("llama")
    export_gguf(saved(model, tmp_path / "ours"), tmp_path / "m.gguf", "Q8_0")
    again = load_gguf(tmp_path / "m.gguf", "float32")
    kind = gguf.GGMLQuantizationType.Q8_0
    name = "layers.1.feed_forward.down_proj.weight"
    down = model.get_parameter(name).detach().numpy()
    wanted = gguf.dequantize(gguf.quantize(down, kind), kind)
    assert torch.equal(again.get_parameter(name), torch.from_numpy(wanted))
    assert torch.equal(again.get_parameter("norm.weight"), model.get_parameter("norm.weight"))
    assert 0 < difference(model, again) < 0.2


def test_rows_that_blocks_do_not_divide_stay_16_bits(tmp_path: Path) -> None:
    model = random_model(decoder(block(attention={"num_heads": 4, "rope": {}}), vocab_size=ROOM, hidden_size=48))
    export_gguf(saved(model.half().float(), tmp_path / "ours"), tmp_path / "m.gguf", "Q8_0")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert (kinds["blk.0.attn_q.weight"], kinds["blk.0.attn_norm.weight"]) == ("F16", "F32")


def test_the_tokenizer_and_the_chat_come_back(tmp_path: Path) -> None:
    tokenizer = toy_tokenizer()
    export_gguf(saved(made("llama"), tmp_path / "ours", tokenizer), tmp_path / "m.gguf")
    again = gguf_tokenizer(open_gguf(tmp_path / "m.gguf"))
    assert (again.eos_token_ids, again.bos_token_id) == (tokenizer.eos_token_ids, tokenizer.bos_token_id)
    assert again.pad_token_id == tokenizer.pad_token_id
    chat = [{"role": "user", "content": "héllo  42"}, {"role": "assistant", "content": "你好\n"}]
    ours, theirs = render_chat(tokenizer, chat), render_chat(again, chat)
    assert (ours.text, ours.ids, ours.assistant_mask) == (theirs.text, theirs.ids, theirs.assistant_mask)


def test_a_sentencepiece_vocabulary_comes_back(tmp_path: Path) -> None:
    first = write_llama(tmp_path / "a.gguf", metadata={**dict.fromkeys(BYTE_LEVEL), **SENTENCE_PIECE}, tensors=room())
    convert_gguf(first, tmp_path / "ours", "float32")
    export_gguf(tmp_path / "ours", tmp_path / "b.gguf")
    before, after = (open_gguf(path).tokenizer_files()["tokenizer.json"] for path in (first, tmp_path / "b.gguf"))
    assert after["model"]["vocab"] == before["model"]["vocab"]
    assert sorted(after["model"]["merges"]) == sorted(before["model"]["merges"])
    assert after["post_processor"] == before["post_processor"]


def room() -> dict[str, Any]:
    """Embeddings for as many tokens as that vocabulary has."""
    return {"token_embd.weight": llama_tensors(vocab=len(SENTENCE_PIECE["tokenizer.ggml.tokens"]))["token_embd.weight"]}


def test_what_gguf_cannot_say_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    odd = random_model(decoder(block(placement="sandwich", norm={"kind": "layer_norm"}), vocab_size=ROOM))
    with pytest.raises(UserError, match="GGUF has no architecture for this model"):
        export_gguf(saved(odd, tmp_path / "odd"), file)
    dynamic = {**CONFIGS["llama"], "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    with pytest.raises(UserError, match="cannot say all of this model: layers would be read differently"):
        export_gguf(saved(random_model(read_config(dynamic)), tmp_path / "dynamic"), file)
    words = tokenizers.Tokenizer(token_models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    with pytest.raises(UserError, match="GGUF cannot say a tokenizer of kind WordLevel"):
        export_gguf(saved(made("llama"), tmp_path / "words", Tokenizer(words)), file)
    cut = byte_level()
    cut.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), cut.pre_tokenizer])
    with pytest.raises(UserError, match="GGUF cannot say how this tokenizer cuts text"):
        export_gguf(saved(made("llama"), tmp_path / "cut", Tokenizer(cut)), file)
    large = made("llama")
    large.lm_head.weight.data[0, 0] = 1e5
    with pytest.raises(UserError, match=r"output\.weight has a weight beyond 65,504"):
        export_gguf(saved(large, tmp_path / "large"), file)
    many = toy_tokenizer()
    many.eos_token_ids |= {3, 4, 5}
    with pytest.raises(UserError, match=r"GGUF cannot say the stop tokens \[0, 2, 3, 4, 5\]"):
        export_gguf(saved(made("llama"), tmp_path / "many", many), file)
    assert not list(tmp_path.glob("*.gguf*"))


def test_a_spec_with_the_wrong_tokenizer_is_named(tmp_path: Path) -> None:
    small = random_model(decoder(vocab_size=300 - 45))
    with pytest.raises(UserError, match="token ids and 255 embeddings"):
        export_gguf(saved(small, tmp_path / "small"), tmp_path / "m.gguf")
