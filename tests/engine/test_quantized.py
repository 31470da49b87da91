"""Weights of integers: how far off they are, what they take, and that both paths multiply the same ones."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio.engine.packed import pack
from intaglio.engine.quantized import QuantizedLinear, Weights, can_quantize, quantize, weight_bytes
from intaglio.models.decoder import Decoder
from native_build import native_file, with_native
from tiny_specs import ZOO
from toy_llms import random_model

__all__ = ["native_file", "with_native"]  # fixtures

every_width = pytest.mark.parametrize("bits", [8, 4])


@every_width
def test_every_weight_is_within_half_a_step(bits: int) -> None:
    weight = torch.randn(33, 192)
    made = quantize(weight, bits)
    steps = made.scales.float().repeat_interleave(192 // made.scales.shape[1], dim=1)
    off = (weight - made.weight()).abs() / steps
    assert off.max() <= (0.5 + 1e-5 if bits == 8 else 0.6)  # with 4 bits, offsets are rounded too
    assert made.ints.min() >= -(2 ** (bits - 1))
    assert made.ints.unique().numel() >= 2**bits * 0.9  # the steps are used


@every_width
def test_what_lies_on_the_steps_is_kept_exactly(bits: int) -> None:
    first = quantize(torch.randn(32, 128), bits).weight()
    again = quantize(first, bits).weight()
    assert (again - first).abs().max() <= 2**-7 * first.abs().max()


def test_four_bits_follow_a_group_that_lies_off_zero() -> None:
    weight = 5 + torch.rand(8, 64)
    assert (quantize(weight, 4).weight() - weight).abs().max() < 0.06


@every_width
def test_a_row_of_zeros_stays_one(bits: int) -> None:
    made = quantize(torch.zeros(1, 64), bits)
    assert not made.weight().any()
    assert made.scales.isfinite().all()


@every_width
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_plain_torch_multiplies_the_weights_it_stands_for(bits: int, dtype: torch.dtype) -> None:
    weight, bias, x = torch.randn(40, 96), torch.randn(40), torch.randn(3, 96).to(dtype)
    linear = QuantizedLinear(weight, bias, bits)
    assert (linear.dequantized() - weight).abs().max() < (0.03 if bits == 8 else 0.6)
    assert torch.equal(linear(x), F.linear(x, linear.dequantized().to(dtype), bias.to(dtype)))


@every_width
def test_both_paths_are_equal(bits: int, with_native: None) -> None:
    weight, bias = torch.randn(40, 96), torch.randn(40)
    linear = QuantizedLinear(weight, bias, bits)
    for rows in (1, 5, 70):
        x = torch.randn(rows, 96)
        expected = F.linear(x.double(), linear.dequantized().double(), bias.double())
        torch.testing.assert_close(linear(x).double(), expected, rtol=1e-5, atol=1e-4)


def rounded(x: Tensor, size: int) -> Tensor:
    """What the native operator multiplies integers with: each group of a bf16 row to 127 steps up and down."""
    groups = x.float().unflatten(1, (-1, size))
    most = groups.abs().amax(dim=2, keepdim=True)
    steps = groups.double() * (most.new_tensor(127) / most).double()  # as a fused product and sum has it
    return (steps.round() * (most / 127)).flatten(1)


@every_width
def test_with_native_operators_inputs_in_bf16_have_8_bits(bits: int, with_native: None) -> None:
    torch.manual_seed(0)
    linear = QuantizedLinear(torch.randn(40, 192), torch.randn(40), bits)
    weight, bias = linear.dequantized().double(), linear.bias
    assert bias is not None
    for rows in (1, 3, 5, 70):
        x = torch.randn(rows, 192).bfloat16()
        made = linear(x).double()
        expected = F.linear(rounded(x, 192 // linear.scales.shape[1]), weight, bias.double())
        torch.testing.assert_close(made, expected, rtol=2**-8, atol=1e-3)
        exact = F.linear(x.double(), weight, bias.double())
        assert (made - exact).norm() < 0.01 * exact.norm()
        assert torch.equal(linear(x[-1:]).double(), made[-1:])  # whatever rows stand beside it


@every_width
def test_inputs_of_zeros_give_the_bias(bits: int, with_native: None) -> None:
    linear = QuantizedLinear(torch.randn(33, 64), torch.randn(33), bits, wide=True)
    assert linear.bias is not None
    assert torch.equal(linear(torch.zeros(2, 64, dtype=torch.bfloat16)), linear.bias.expand(2, -1))


def test_bytes() -> None:
    linear = nn.Linear(256, 320, bias=False).bfloat16()
    plain = weight_bytes(linear)
    assert plain == 256 * 320 * 2
    assert weight_bytes(QuantizedLinear(linear.weight, None, 8)) == plain // 2 * (64 + 2) // 64
    assert weight_bytes(QuantizedLinear(linear.weight, None, 4)) == plain // 4 * (16 + 4) // 16
    tied = Decoder(ZOO["MHA"].updated(tie_embeddings=True))
    assert weight_bytes(tied) == tied.spec.num_parameters() * 4


@pytest.mark.parametrize(("inputs", "fits"), [(576, True), (40, True), (36, False), (31, False)])
def test_too_odd_a_number_of_inputs_stays_as_it_is(inputs: int, fits: bool) -> None:
    assert can_quantize(inputs, 4) == fits


@pytest.mark.parametrize("name", ZOO)
@torch.inference_mode()
def test_every_kind_of_model_keeps_its_logits(name: str) -> None:
    model = random_model(ZOO[name])
    ids = torch.randint(0, model.spec.vocab_size, (2, 9))
    plain = model(ids)
    quantized = pack(model, "int8")
    assert not any(type(module) is nn.Linear and module.in_features == 32 for module in _packable(quantized))
    assert (quantized(ids) - plain).norm() < 0.2 * plain.norm()  # fourteen layers of large weights amplify


def _packable(model: Decoder) -> list[nn.Module]:
    """What may not be left: all but the matrix that latent attention takes apart."""
    return [module for name, module in model.named_modules() if not name.endswith("kv_b_proj")]


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("name", ["GQA", "bias on q", "experts and a shared one", "one dense, then experts, latent"])
@torch.inference_mode()
def test_models_are_equal_on_both_paths(name: str, weights: Weights, request: pytest.FixtureRequest) -> None:
    model, ids = random_model(ZOO[name]), torch.randint(0, 64, (2, 9))
    plain = pack(copy.deepcopy(model), weights)(ids)
    request.getfixturevalue("with_native")
    torch.testing.assert_close(pack(model, weights)(ids), plain, rtol=1e-4, atol=1e-4)
