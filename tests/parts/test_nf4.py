"""4-bit NormalFloat: bitsandbytes' bits, the paper's values, and a linear layer that differentiates through them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio import native
from intaglio.errors import UserError
from intaglio.parts import nf4
from intaglio.parts.moe import Experts, grouped_linear
from intaglio.parts.nf4 import CODE, DYNAMIC, NF4Linear, NF4Stack, NF4Weight, dequantize, quantize_nf4
from intaglio.specs import FeedForwardSpec
from intaglio.specs.quantization import QuantizationSpec
from native_build import native_file, with_native

__all__ = ["native_file", "with_native"]  # fixtures

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(scope="module")
def bnb() -> Any:
    return pytest.importorskip("bitsandbytes.functional")


@pytest.fixture(params=["native", "plain", "bitsandbytes"])
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The ways to the same bits; bitsandbytes' operators, which are for CUDA devices, here by its CPU backend."""
    if request.param == "native":
        request.getfixturevalue("with_native")
    else:
        monkeypatch.setattr(native, "available", lambda: False)
    if request.param == "bitsandbytes":
        request.getfixturevalue("bnb")
        monkeypatch.setattr(nf4, "_kernels", lambda tensor: nf4._bitsandbytes())
    return str(request.param)


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_the_values_are_quantiles_of_a_normal_distribution() -> None:
    offset = ((1 - 1 / 32) + (1 - 1 / 30)) / 2
    above = torch.special.ndtri(torch.linspace(offset, 0.5, 9, dtype=torch.float64)[:-1])
    below = -torch.special.ndtri(torch.linspace(offset, 0.5, 8, dtype=torch.float64)[:-1])
    values = torch.cat((above, torch.zeros(1, dtype=torch.float64), below)).sort().values
    torch.testing.assert_close(CODE.double(), values / values.max(), rtol=0, atol=2e-7)


def test_the_tables_are_those_of_bitsandbytes(bnb: Any) -> None:
    assert torch.equal(CODE, bnb.get_4bit_type("nf4", device="cpu"))
    assert torch.equal(DYNAMIC, bnb.create_dynamic_map())


@pytest.mark.parametrize("double_quant", [False, True])
@pytest.mark.parametrize("blocksize", [32, 64, 4096])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_are_those_of_bitsandbytes(
    bnb: Any, road: str, dtype: torch.dtype, blocksize: int, double_quant: bool
) -> None:
    for shape in ((64, 64), (100, 70), (33, 3), (1, 1), (300, 512)):
        weight = (_normal(*shape) * 0.02).to(dtype)
        weight[0] = 0  # a block of nothing
        ours = quantize_nf4(weight, blocksize, double_quant)
        packed, state = bnb.quantize_4bit(
            weight, blocksize=blocksize, compress_statistics=double_quant, quant_type="nf4"
        )
        assert torch.equal(ours.packed, packed.flatten())
        assert torch.equal(ours.absmax, state.absmax)
        if double_quant:
            assert ours.nested_absmax is not None
            assert torch.equal(ours.nested_absmax, state.state2.absmax)
            assert ours.nested_offset is not None
            assert torch.equal(ours.nested_offset, state.offset)
        assert ours.misfit() is None


@pytest.mark.parametrize("double_quant", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_comes_back_is_what_bitsandbytes_gives(
    bnb: Any, road: str, dtype: torch.dtype, double_quant: bool
) -> None:
    weight = (_normal(256, 128) * 0.02).to(dtype)  # its kernel is right where rows are whole blocks
    packed, state = bnb.quantize_4bit(weight, blocksize=64, compress_statistics=double_quant, quant_type="nf4")
    ours = dequantize(quantize_nf4(weight, 64, double_quant), dtype)
    assert torch.equal(ours, bnb.dequantize_4bit(packed, state))


def test_many_scales_of_8_bits_are_those_of_bitsandbytes(bnb: Any) -> None:
    scales = _normal(2**18, 32).abs() * torch.rand(2**18, 1, generator=torch.Generator().manual_seed(1))
    ours = quantize_nf4(scales, 32)
    _, state = bnb.quantize_4bit(scales, blocksize=32, compress_statistics=True, quant_type="nf4")
    assert torch.equal(ours.absmax, state.absmax)


@pytest.mark.parametrize(("blocksize", "error"), [(32, 0.0677), (64, 0.07280), (128, 0.0768), (256, 0.0803)])
def test_the_mean_error_on_normal_weights_is_the_published_one(road: str, blocksize: int, error: float) -> None:
    weight = _normal(1024, 1024)
    back = dequantize(quantize_nf4(weight, blocksize, double_quant=False), torch.float32)
    assert (weight - back).abs().mean().item() == pytest.approx(error, abs=2e-4)


def test_double_quantisation_costs_next_to_nothing(road: str) -> None:
    weight = _normal(1024, 1024)
    back = dequantize(quantize_nf4(weight), torch.float32)
    assert (weight - back).abs().mean().item() == pytest.approx(0.07284, abs=2e-4)
    assert (weight - back).square().mean().sqrt().item() == pytest.approx(0.0920, abs=5e-4)


def test_values_that_4_bits_have_come_back_exactly(road: str) -> None:
    numbers = torch.randint(0, 16, (128, 64), generator=torch.Generator().manual_seed(2))
    numbers[:, 5] = 15  # every block has its largest
    weight = CODE[numbers] * (_normal(128, 1).abs() + 0.1)
    once = quantize_nf4(weight, double_quant=False)
    assert torch.equal(dequantize(once, torch.float32), weight)
    again = quantize_nf4(dequantize(once, torch.float32), double_quant=False)
    assert torch.equal(again.packed, once.packed)


def test_the_largest_weight_of_a_block_is_exact(road: str) -> None:
    weight = _normal(8, 64)
    back = dequantize(quantize_nf4(weight, double_quant=False), torch.float32)
    largest = weight.abs().argmax(dim=1)
    rows = torch.arange(8)
    assert torch.equal(back[rows, largest], weight[rows, largest])


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(road: str, wrong: float) -> None:
    weight = _normal(64, 64)
    weight[3, 7] = wrong
    with pytest.raises(UserError, match="no finite numbers"):
        quantize_nf4(weight)


@pytest.mark.parametrize("double_quant", [False, True])
def test_bytes_are_those_that_arithmetic_gives(double_quant: bool) -> None:
    weight = quantize_nf4(_normal(512, 1024), 64, double_quant)
    held = sum(t.numel() * t.element_size() for t in weight.tensors().values() if t is not None)
    assert held == QuantizationSpec(double_quant=double_quant).num_bytes(512 * 1024)
    assert held * 8 / (512 * 1024) == pytest.approx(4.127 if double_quant else 4.5, abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_the_layer_is_a_linear_one_with_the_weights_made_anew(dtype: torch.dtype, bias: bool) -> None:
    plain = nn.Linear(64, 32, bias=bias).to(dtype)
    layer = NF4Linear(quantize_nf4(plain.weight), plain.bias)
    x, also = (_normal(2, 5, 64, seed=3).to(dtype).requires_grad_() for _ in range(2))
    matrix = layer.dequantized().to(dtype)
    out, wanted = layer(x), F.linear(also, matrix, plain.bias)
    assert torch.equal(out, wanted)
    (out * out).sum().backward()
    ours = [x.grad] + ([plain.bias.grad] if bias else [])
    plain.zero_grad()
    (wanted * wanted).sum().backward()
    for got, want in zip(ours, [also.grad] + ([plain.bias.grad] if bias else []), strict=True):
        assert got is not None
        torch.testing.assert_close(got, want)


def test_gradients_are_those_of_finite_differences() -> None:
    layer = NF4Linear(quantize_nf4(_normal(8, 32).double().float()))
    x = _normal(3, 32, seed=1).double().requires_grad_()
    assert torch.autograd.gradcheck(layer, (x,))


def test_nothing_but_4_bits_is_kept_for_the_backward() -> None:
    layer = NF4Linear(quantize_nf4(_normal(64, 64)))
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(_normal(4, 64).requires_grad_())
    assert not kept
    assert not list(layer.parameters())


def test_a_change_of_dtype_leaves_the_scales_alone() -> None:
    layer = NF4Linear(quantize_nf4(_normal(64, 64)), nn.Parameter(torch.zeros(64)))
    before = layer.dequantized()
    nn.Sequential(layer).to(torch.bfloat16)
    assert torch.equal(layer.dequantized(), before)
    assert layer.bias is not None
    assert layer.bias.dtype == torch.bfloat16


def test_a_stack_of_experts_runs_as_the_plain_one_does() -> None:
    experts = Experts(FeedForwardSpec(intermediate_size=32, activation="silu", gated=True), 3, 64)
    x, ends = _normal(7, 64, seed=4).requires_grad_(), torch.tensor([2, 2, 7], dtype=torch.int32)
    stack = NF4Stack([quantize_nf4(one) for one in experts.up_proj.detach()])
    assert stack.shape == experts.up_proj.shape
    made = stack(x, ends)
    torch.testing.assert_close(made, grouped_linear(x, stack.dequantized(), ends))
    del experts.up_proj
    experts.up_proj = stack  # type: ignore[assignment]
    assert experts(x, ends).shape == x.shape


def test_sizes_that_do_not_fit_are_told() -> None:
    good = quantize_nf4(_normal(64, 64))
    short = NF4Weight(**{**vars(good), "packed": good.packed[:-1]})
    assert "packed" in (short.misfit() or "")
    assert good.misfit() is None
