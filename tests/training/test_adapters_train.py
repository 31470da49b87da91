"""Adapters in the loop: what trains, what is kept for it, and that nothing else moves."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from intaglio.adapters.attach import attach
from intaglio.data.examples import Example
from intaglio.models.decoder import Decoder
from intaglio.parts.lora_fast import add_low_rank, suits
from intaglio.specs import DecoderSpec
from intaglio.specs.adapter import LoRASpec
from intaglio.training.batching.batches import Batch, make_batch
from intaglio.training.objectives.chunked_loss import chunked_cross_entropy
from intaglio.training.objectives.language_model import LanguageModel
from intaglio.training.stepping.master import MasterWeights
from intaglio.training.stepping.optimizer import OptimizerSpec, build_optimizers
from intaglio.training.stepping.tricks import recompute_activations
from native_build import either_way, native_file, with_native
from tiny_specs import attention, block, decoder

__all__ = ["either_way", "native_file", "with_native"]  # fixtures

SPEC = decoder(block(repeat=2, attention=attention(num_kv_heads=2)), tie_embeddings=True)


def adapted(spec: DecoderSpec = SPEC, dtype: torch.dtype = torch.float32, **lora: Any) -> Decoder:
    """A model with an adapter whose B is not 0, as after some steps."""
    torch.manual_seed(0)
    model = Decoder(spec).to(dtype)
    attach(model, LoRASpec(r=4, **lora))
    dice = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("lora_B"):
                parameter.normal_(0, 0.05, generator=dice)
    return model


def ragged() -> Batch:
    dice = np.random.default_rng(0)
    rows = [dice.integers(0, 64, length).astype(np.int32) for length in (9, 3, 17, 6)]
    return make_batch([Example(row, np.arange(len(row)) > 0, "") for row in rows])


def gradients(model: Decoder, batch: Batch) -> dict[str, Tensor]:
    model.zero_grad()
    LanguageModel(chunk=7)(model, batch).total.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("which", [1, 2, "selective"])
@pytest.mark.usefixtures("either_way")
def test_case_29_checkpointed_adapters_get_the_same_gradients(which: Any, dtype: torch.dtype) -> None:
    """transformers#42489: with frozen embeddings a checkpointed layer had none."""
    batch = ragged()
    plain, again = adapted(dtype=dtype), adapted(dtype=dtype)
    recompute_activations(again, which)
    wanted, found = gradients(plain, batch), gradients(again, batch)
    assert found.keys() == wanted.keys() == {name for name, p in plain.named_parameters() if p.requires_grad}
    for name, gradient in wanted.items():
        assert gradient.dtype == torch.float32
        assert gradient.abs().sum() > 0, name
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-6)


def test_the_b_of_an_adapter_has_a_rate_of_its_own() -> None:
    model = adapted()
    masters = MasterWeights(model, torch.float32).masters
    plain, fast = build_optimizers(OptimizerSpec(learning_rate=1e-3, loraplus_lr_ratio=16), masters)[0].param_groups
    assert (plain["peak"], fast["peak"]) == (1e-3, pytest.approx(1.6e-2))
    assert {id(p) for p in fast["params"]} == {id(p) for name, p in masters.items() if name.endswith("lora_B")}


def test_a_frozen_output_matrix_costs_no_product() -> None:
    hidden, weight = torch.randn(9, 8, requires_grad=True), torch.randn(20, 8)
    targets = torch.arange(9)
    loss = chunked_cross_entropy(hidden, weight, targets, chunk=4)
    (found,) = torch.autograd.grad(loss, hidden)
    plain = torch.nn.functional.cross_entropy(hidden @ weight.T, targets, reduction="sum")
    torch.testing.assert_close(found, torch.autograd.grad(plain, hidden)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-9), (torch.bfloat16, 0.3)])
def test_an_update_added_at_once_is_the_plain_one(dtype: torch.dtype, error: float) -> None:
    torch.manual_seed(0)
    sizes = ((2, 5, 6), (2, 5, 8), (3, 8), (6, 3))
    exact = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    wide = torch.promote_types(dtype, torch.float32)
    rounded = [t.detach().to(to).requires_grad_() for t, to in zip(exact, (dtype, dtype, wide, wide), strict=True)]
    out, x, a, b = exact
    wanted = out + 1.5 * (x @ a.T @ b.T)
    assert suits(rounded[1], rounded[0])
    found = add_low_rank(rounded[0], rounded[1], rounded[2], rounded[3], 1.5)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=error)
    pull = torch.randn(wanted.shape, dtype=torch.float64)
    pulled, wanted_too = torch.autograd.grad(found, rounded, pull.to(dtype)), torch.autograd.grad(wanted, exact, pull)
    for ours, theirs in zip(pulled, wanted_too, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=error)
