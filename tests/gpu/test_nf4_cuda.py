"""4 bits on a CUDA device, by bitsandbytes' kernels where it is installed: the weights that a CPU makes of them."""

import pytest
import torch
import torch.nn.functional as F

from intaglio.parts.nf4 import NF4Linear, dequantize, quantize_nf4

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_are_those_of_a_cpu(dtype: torch.dtype) -> None:
    weight = torch.randn(256, 512, generator=torch.Generator().manual_seed(0)).to(dtype)
    there, here = quantize_nf4(weight.cuda()), quantize_nf4(weight)
    assert torch.equal(there.packed.cpu(), here.packed)
    torch.testing.assert_close(dequantize(there, dtype).cpu(), dequantize(here, dtype), rtol=1e-2, atol=1e-3)


def test_a_layer_multiplies_and_differentiates() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(64, 128, generator=generator), torch.randn(3, 128, generator=generator)
    layer, x = NF4Linear(quantize_nf4(weight.cuda())), x.cuda().requires_grad_()
    out = layer(x)
    torch.testing.assert_close(out, F.linear(x, layer.dequantized()), rtol=1e-3, atol=1e-3)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(gradient, layer.dequantized().sum(dim=0).expand(3, -1), rtol=1e-3, atol=1e-3)
