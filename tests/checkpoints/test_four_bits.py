"""Matrices of 4 bits in files: bitsandbytes' and transformers' own, read and written."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from intaglio.adapters.quantize import quantize
from intaglio.checkpoints.four_bits import stored_tensors
from intaglio.checkpoints.load import load_directory
from intaglio.checkpoints.save import save_model
from intaglio.errors import UserError
from intaglio.models.quantize import quantized_matrices
from intaglio.parts.nf4 import NF4Weight, dequantize, quantize_nf4
from intaglio.specs.quantization import QuantizationSpec

IDS = torch.randint(3, 61, (2, 8), generator=torch.Generator().manual_seed(0))

# widths of whole blocks: bitsandbytes' kernel for a CPU is wrong on others
SIZES: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2},
    "gpt2": {"n_embd": 64, "n_head": 4},
    "gpt_neox": {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4},
    "mixtral": {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 3,
    },
}


def _directory(model_type: str, path: Path) -> Path:
    """A tiny model of transformers', its weights large enough to tell."""
    from transformers import AutoConfig, AutoModelForCausalLM

    layers = {"n_layer": 2} if model_type == "gpt2" else {"num_hidden_layers": 2}
    config = AutoConfig.for_model(model_type, vocab_size=61, **layers, **SIZES[model_type])
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(path)
    return path


@pytest.mark.parametrize("double_quant", [False, True])
@pytest.mark.parametrize("model_type", SIZES)
def test_what_is_written_is_read_again_to_the_bit(model_type: str, double_quant: bool, tmp_path: Path) -> None:
    model = load_directory(_directory(model_type, tmp_path / "plain"))
    quantize(model, QuantizationSpec(double_quant=double_quant))
    save_model(model, tmp_path / "four")
    again = load_directory(tmp_path / "four")
    before, after = quantized_matrices(model), quantized_matrices(again)
    assert before.keys() == after.keys()
    for name, matrix in before.items():
        assert torch.equal(matrix.dequantized(), after[name].dequantized()), name
    assert torch.equal(model(IDS), again(IDS))


@pytest.mark.parametrize("double_quant", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gpt_neox"])
def test_transformers_reads_ours_and_we_read_its_own(model_type: str, double_quant: bool, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    plain = _directory(model_type, tmp_path / "plain")
    ours = load_directory(plain)
    quantize(ours, QuantizationSpec(double_quant=double_quant))
    save_model(ours, tmp_path / "ours")
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double_quant)
    theirs = AutoModelForCausalLM.from_pretrained(plain, quantization_config=config)
    theirs.save_pretrained(tmp_path / "theirs")
    _hold_equal(AutoModelForCausalLM.from_pretrained(tmp_path / "ours"), ours, tmp_path / "a")
    _hold_equal(theirs, load_directory(tmp_path / "theirs"), tmp_path / "b")


def _hold_equal(theirs: Any, ours: Any, path: Path) -> None:
    """The matrices of both, by their names: what ours writes is what theirs holds."""
    save_model(ours, path)
    modules = {name: module for name, module in theirs.named_modules() if type(module).__name__ == "Linear4bit"}
    file = load_file(path / "model.safetensors")
    assert modules
    assert {name for name in file if name.endswith("bitsandbytes__nf4")} == {
        f"{name}.weight.quant_state.bitsandbytes__nf4" for name in modules
    }
    for name, module in modules.items():
        assert torch.equal(file[f"{name}.weight"], module.weight.data), name
        state = module.weight.quant_state
        made = dequantize(
            NF4Weight(
                module.weight.data.flatten(),
                state.absmax,
                state.state2.absmax if state.nested else None,
                state.offset if state.nested else None,
                tuple(state.shape),
                state.dtype,
                state.blocksize,
            ),
            torch.float32,
        )
        assert torch.equal(made, _read(file, f"{name}.weight")), name


def _read(file: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    state = json.loads(bytes(file[f"{name}.quant_state.bitsandbytes__nf4"].tolist()))
    nested = file.get(f"{name}.nested_absmax")
    offset = None if nested is None else torch.tensor(state["nested_offset"])
    size = (tuple(state["shape"]), torch.float32, state["blocksize"])
    return dequantize(NF4Weight(file[name].flatten(), file[f"{name}.absmax"], nested, offset, *size), torch.float32)


@pytest.mark.parametrize("double_quant", [False, True])
def test_bitsandbytes_understands_what_is_stored_of_a_matrix(double_quant: bool) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    weight = quantize_nf4(torch.randn(64, 128, generator=torch.Generator().manual_seed(0)), 64, double_quant)
    tensors = {name.removeprefix("w."): t for name, t in stored_tensors("w.weight", weight).items()}
    packed = tensors.pop("weight")
    state = functional.QuantState.from_dict(tensors, device=torch.device("cpu"))
    assert torch.equal(functional.dequantize_4bit(packed, state), dequantize(weight, torch.float32))
    written = {f"weight.{key}" for key in state.as_dict(packed=True)}
    assert written == stored_tensors("weight", weight).keys() - {"weight"}


def _edited(path: Path, edit: Any) -> Path:
    """The directory with its tensors changed by `edit`."""
    tensors = load_file(path / "model.safetensors")
    edit(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


NAME = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda t: t.update({NAME: t[NAME][:-1].clone()}), "packed is"),
        (lambda t: t.update({f"{NAME}.quant_map": t[f"{NAME}.quant_map"] * 2}), "values of its own"),
        (lambda t: t.pop(f"{NAME}.absmax"), "is missing"),
        (
            lambda t: t.update({f"{NAME}.quant_state.bitsandbytes__nf4": torch.tensor(list(b"{}"), dtype=torch.uint8)}),
            "is not understood",
        ),
    ],
)
def test_a_damaged_file_is_refused_by_name(edit: Any, said: str, tmp_path: Path) -> None:
    model = load_directory(_directory("llama", tmp_path / "plain"))
    quantize(model, QuantizationSpec())
    save_model(model, tmp_path / "four")
    with pytest.raises(UserError, match=said):
        load_directory(_edited(tmp_path / "four", edit))


def test_another_kind_of_4_bits_is_refused(tmp_path: Path) -> None:
    path = _directory("llama", tmp_path / "plain")
    config = json.loads((path / "config.json").read_text())
    said = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
    with pytest.raises(UserError, match="bitsandbytes' NF4"):
        load_directory(path)
