"""The plan of a step that trains an adapter, held against a real one."""

from typing import Any

import pytest
import torch

from intaglio.adapters.attach import attach
from intaglio.adapters.quantize import quantize
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.parts.context import Packed
from intaglio.planning import plan_training
from intaglio.planning.activations import activations
from intaglio.planning.adapters import ranks_of, trained_shapes
from intaglio.planning.tape import Shared
from intaglio.specs import DecoderSpec
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.quantization import QuantizationSpec
from measured_memory import CHUNK, Run, allocated, kept
from measured_memory import DOCUMENTS as ROW_DOCUMENTS
from measured_memory import TOKENS as ROW
from native_build import either_way, native_file, with_native
from tiny_specs import GATED, LAYER, RMS, ZOO, attention, block, decoder, with_moe

__all__ = ["either_way", "native_file", "with_native"]  # fixtures

TOKENS = 12
DOCUMENTS = [5, 6, 1]
LORA = LoRASpec(r=4)

SPECS = {
    "LLaMA-like": decoder(block(attention=attention(num_kv_heads=2), repeat=2), tie_embeddings=True),
    "GPT-like": decoder(block(norm=LAYER, attention=attention(rope=None), repeat=2), positions={"kind": "learned"}),
    "norms of heads": decoder(block(attention=attention(num_kv_heads=2, qk_norm={"norm": RMS}), repeat=2)),
    "post": decoder(block(placement="post", norm=LAYER, repeat=2)),
    "latent, compressed queries": ZOO["latent, compressed queries"],
    "experts": with_moe(),
}


def adapted(
    spec: DecoderSpec, lora: LoRASpec, dtype: torch.dtype, quantization: QuantizationSpec | None = None
) -> Decoder:
    model = Decoder(spec).to(dtype)
    if quantization:
        quantize(model, quantization)
    attach(model, lora)
    return model


@pytest.mark.parametrize("lora", [
    LORA,
    LoRASpec(r=4, rank_pattern={"q_proj": 2}, target_modules=("q_proj", "up_proj"), use_dora=True),
    LoRASpec(r=3, target_modules=("o_proj",), lora_bias=True, modules_to_save=("lm_head",)),
    LoRASpec(exclude_modules=("v_proj",), trainable_token_indices=(3, 7)),
    LoRASpec(bias="all"),
    LoRASpec(bias="lora_only", target_modules=("q_proj",)),
])  # fmt: skip
def test_what_trains_is_counted(lora: LoRASpec) -> None:
    bias = {"q": True, "o": True}
    spec = decoder(block(norm=LAYER, attention=attention(bias=bias), feed_forward={**GATED, "bias": True}))
    model = adapted(spec, lora, torch.float32)
    trained = trained_shapes(spec, lora, ranks_of(spec, lora))
    shapes = sorted(tuple(p.shape) for p in model.parameters() if p.requires_grad)
    assert sorted(trained.values()) == shapes


@pytest.mark.parametrize("quantization", [None, QuantizationSpec(), QuantizationSpec(double_quant=False)])
@pytest.mark.parametrize("name", SPECS)
def test_frozen_weights_take_the_bytes_that_are_counted(name: str, quantization: QuantizationSpec | None) -> None:
    model = Decoder(SPECS[name]).bfloat16()
    if quantization:
        quantize(model, quantization)
    plan = plan_training(SPECS[name], TOKENS, adapter=LORA, quantization=quantization)
    assert plan.weights == sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
    assert plan.adapters == plan.gradients
    assert plan.master_weights == 0


def kept_and_counted(name: str, dtype: torch.dtype, targets: Any) -> tuple[int, int]:
    spec, lora = SPECS[name], LoRASpec(r=4, target_modules=targets)
    model = adapted(spec, lora, dtype)
    positions = torch.cat([torch.arange(length) for length in DOCUMENTS])[None]
    counted = activations(spec, TOKENS, dtype.itemsize, DOCUMENTS, ranks=ranks_of(spec, lora))
    return kept(model, Packed(DOCUMENTS), positions), counted.kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.usefixtures("either_way")
def test_a_row_keeps_what_is_counted(name: str, dtype: torch.dtype) -> None:
    found, counted = kept_and_counted(name, dtype, "all-linear")
    assert counted == found


EVERYWHERE = {
    **{name: spec for name, spec in SPECS.items() if name != "experts"},
    "parallel": ZOO["parallel rms_norm"],
    "sandwich": ZOO["sandwich layer_norm"],
    "soft-capped": ZOO["soft-capped"],
    "window": ZOO["window"],
    "latent, direct queries": ZOO["latent"],
    "swish": ZOO["swish learned, gated"],
    "ungated experts": with_moe(expert={"intermediate_size": 16, "activation": "gelu"}),
    "gated experts, some shared": ZOO["experts in groups"],
    "narrow experts": with_moe(expert={"intermediate_size": 12, "activation": "gelu"}),
}


@pytest.mark.parametrize("name", EVERYWHERE)
def test_so_does_one_with_an_adapter_on_any_one_matrix(name: str) -> None:
    """Of each kind: what lies before the first adapter keeps nothing, nor does what no gradient of it wants."""
    spec = EVERYWHERE[name]
    matrices = {path.split(".", 2)[2] for path in ranks_of(spec, LORA)}
    if "experts" in name:
        matrices |= {"feed_forward.router"}
    else:
        matrices = {matrix.rpartition(".")[2] for matrix in matrices} | {"embed_tokens"}
    for number, matrix in enumerate(sorted(matrices), start=len(name)):
        lora, dtype = LoRASpec(r=3, lora_alpha=7, target_modules=(matrix,)), (torch.float32, torch.bfloat16)[number % 2]
        counted = activations(spec, TOKENS, dtype.itemsize, DOCUMENTS, ranks=ranks_of(spec, lora))
        positions = torch.cat([torch.arange(length) for length in DOCUMENTS])[None]
        assert counted.kept == kept(adapted(spec, lora, dtype), Packed(DOCUMENTS), positions), matrix


@pytest.mark.parametrize("quantization", [QuantizationSpec()])
@pytest.mark.parametrize("name", ["LLaMA-like", "experts"])
def test_so_does_one_whose_weights_are_in_few_bits(name: str, quantization: QuantizationSpec) -> None:
    model = adapted(SPECS[name], LORA, torch.bfloat16, quantization)
    counted = activations(
        SPECS[name], TOKENS, 2, DOCUMENTS, ranks=ranks_of(SPECS[name], LORA), shared=Shared(quantized=True)
    )
    positions = torch.cat([torch.arange(length) for length in DOCUMENTS])[None]
    assert counted.kept == kept(model, Packed(DOCUMENTS), positions)


@pytest.mark.parametrize("targets", [("q_proj", "v_proj"), ("down_proj",), ("o_proj", "up_proj")])
@pytest.mark.parametrize("name", ["LLaMA-like", "GPT-like", "post"])
@pytest.mark.usefixtures("either_way")
def test_so_does_one_with_fewer_adapters(name: str, targets: tuple[str, ...]) -> None:
    found, counted = kept_and_counted(name, torch.bfloat16, targets)
    assert counted == found


@pytest.mark.parametrize("every", [0, 1, "selective"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("quantization", [None, QuantizationSpec()])
def test_the_plan_is_what_a_step_takes(quantization: QuantizationSpec | None, dtype: str, every: Any) -> None:
    spec = decoder(block(repeat=3), vocab_size=2048)
    run = Run(adapted(spec, LORA, getattr(torch, dtype), quantization), torch.float32, "adamw", every)
    plan = plan_training(
        spec, ROW, dtype=dtype, chunk=CHUNK, checkpoint_every=every, documents=ROW_DOCUMENTS, adapter=LORA,
        quantization=quantization,
    )  # fmt: skip
    packed = sum(buffer.nbytes for buffer in run.model.buffers())
    assert plan.resident == run.resident() + packed
    assert plan.peak - plan.resident == pytest.approx(allocated(run.step), rel=0.1 if every else 0.03)


def test_what_has_other_names_here_is_refused() -> None:
    with pytest.raises(UserError, match="c_attn"):
        plan_training(SPECS["GPT-like"], TOKENS, adapter=LoRASpec(target_modules=("c_attn",)))
