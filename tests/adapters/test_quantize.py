"""Whole models of 4 bits: what is put into them, how they are loaded, and what trains beside them."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from intaglio.adapters import quantize as module
from intaglio.adapters.attach import attach
from intaglio.adapters.quantize import load_quantized, quantize, random_quantized
from intaglio.checkpoints.save import save_model
from intaglio.errors import UserError
from intaglio.models.build import build_model
from intaglio.models.decoder import Decoder
from intaglio.models.init import init_weights
from intaglio.models.quantize import frozen_matrices, put_matrix, quantized_matrices
from intaglio.parts.nf4 import NF4Linear, NF4Weight
from intaglio.specs import DecoderSpec, GRUCellSpec, RecurrentSpec
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.quantization import QuantizationSpec
from tiny_specs import MOE, block, decoder

IDS = torch.randint(0, 50, (2, 12), generator=torch.Generator().manual_seed(0))


def _spec(experts: bool = False, tied: bool = False) -> DecoderSpec:
    layer = block(feed_forward=MOE) if experts else block()
    return decoder(layer, layer, hidden_size=64, tie_embeddings=tied)


def _model(spec: DecoderSpec) -> Decoder:
    model = Decoder(spec)
    init_weights(model, 0)
    return model


@pytest.mark.parametrize("experts", [False, True])
def test_matrices_of_the_layers_are_4_bits_and_nothing_else_is(experts: bool) -> None:
    model = _model(_spec(experts))
    names, rest = frozen_matrices(model), {n for n, p in model.named_parameters() if p.ndim < 2}
    quantize(model, QuantizationSpec())
    assert list(quantized_matrices(model)) == names
    left = {name for name, _ in model.named_parameters()}
    router = {name for name in left if name.endswith("router.weight")}
    assert left == rest | router | {"embed_tokens.weight", "lm_head.weight"}
    assert bool(router) == experts
    assert not any(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("experts", [False, True])
def test_the_model_computes_what_one_with_the_weights_made_anew_does(experts: bool) -> None:
    spec = _spec(experts)
    model, plain = _model(spec), _model(spec)
    quantize(model, QuantizationSpec())
    with torch.no_grad():
        for name, matrix in quantized_matrices(model).items():
            plain.get_parameter(name).copy_(matrix.dequantized())
    torch.testing.assert_close(model(IDS), plain(IDS))


@pytest.mark.parametrize("experts", [False, True])
def test_loading_straight_into_4_bits_is_loading_and_then_quantising(experts: bool, tmp_path: Path) -> None:
    model = _model(_spec(experts))
    save_model(model, tmp_path / "plain")
    quantize(model, QuantizationSpec())
    loaded = load_quantized(tmp_path / "plain", QuantizationSpec())
    assert torch.equal(loaded(IDS), model(IDS))
    assert not any(p.requires_grad for p in loaded.parameters())


def test_a_directory_in_4_bits_stays_as_it_is(tmp_path: Path) -> None:
    model = _model(_spec())
    quantize(model, QuantizationSpec(blocksize=128, double_quant=False))
    save_model(model, tmp_path / "four")
    loaded = load_quantized(tmp_path / "four", QuantizationSpec())
    assert {w.blocksize for m in quantized_matrices(loaded).values() for w in m.weights()} == {128}
    assert torch.equal(loaded(IDS), model(IDS))


def test_one_matrix_at_a_time_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the last matrix comes, all before it are 4 bits already."""
    seen: list[int] = []

    def spy(model: nn.Module, name: str, weights: list[NF4Weight]) -> None:
        seen.append(sum(p.numel() for p in model.parameters() if p.ndim > 1 and p.device.type != "meta"))
        put_matrix(model, name, weights)

    monkeypatch.setattr(module, "put_matrix", spy)
    random_quantized(_spec(), QuantizationSpec(), torch.float32)
    assert len(seen) == 14
    assert max(seen) == 64 * 64  # the embeddings, which come first


@pytest.mark.parametrize("tied", [False, True])
def test_random_weights_give_a_whole_model(tied: bool) -> None:
    spec = _spec(tied=tied)
    model = random_quantized(spec, QuantizationSpec(), torch.bfloat16, seed=3)
    again = random_quantized(spec, QuantizationSpec(), torch.bfloat16, seed=3)
    assert torch.equal(model(IDS), again(IDS))
    assert model(IDS).isfinite().all()
    assert all(t.device.type == "cpu" for t in (*model.parameters(), *model.buffers()))
    assert (model.lm_head.weight is model.embed_tokens.weight) == tied


def test_what_has_no_layers_of_matrices_is_refused() -> None:
    model = build_model(RecurrentSpec(vocab_size=9, embedding_size=8, hidden_size=8, cell=GRUCellSpec()))
    with pytest.raises(UserError, match="no matrices"):
        quantize(model, QuantizationSpec())


def _grads(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("experts", [False, True])
def test_only_the_adapter_trains_and_the_loss_falls(experts: bool) -> None:
    model = random_quantized(_spec(experts), QuantizationSpec(), torch.float32)
    attach(model, LoRASpec(r=4))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(3):
        loss = nn.functional.cross_entropy(model(IDS[:, :-1]).flatten(0, 1), IDS[:, 1:].flatten())
        loss.backward()
        grads = _grads(model)
        assert grads.keys() == {name for name, p in model.named_parameters() if p.requires_grad}
        assert all(".lora_" in name for name in grads)
        assert all(g.isfinite().all() and g.any() for name, g in grads.items() if name.endswith("lora_B"))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[2] < losses[1] < losses[0]


def test_a_merge_is_of_the_weights_that_were_trained_beside() -> None:
    """dequantised(W) + s B A to 1e-6 (training case 27), not the sum with what W was before."""
    model = random_quantized(_spec(), QuantizationSpec(), torch.float32)
    attach(model, LoRASpec(r=4))
    wrapped = model.layers[0].attention.q_proj
    piece, base = wrapped.adapters["default"], wrapped.base
    assert isinstance(base, NF4Linear)
    nn.init.normal_(piece.lora_B, std=1e-3)
    wanted = base.dequantized() + piece.scale * piece.lora_B @ piece.lora_A
    merged = wrapped.merged()
    torch.testing.assert_close(merged.weight.float(), wanted, rtol=0, atol=1e-6)
