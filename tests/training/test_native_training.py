"""Training on native operators: no further from double precision than plain torch in bf16, in loss and gradients."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from intaglio.adapters.attach import attach
from intaglio.models.decoder import Decoder
from intaglio.native import gradients
from intaglio.parts.context import Packed
from intaglio.specs import DecoderSpec
from intaglio.specs.adapter import LoRASpec
from intaglio.training.objectives.chunked_loss import chunked_cross_entropy
from native_build import native_file, with_native
from tiny_specs import LATENT, RMS, attention, block, decoder, with_moe

__all__ = ["native_file", "with_native"]  # fixtures

OFFSET = {"kind": "rms_norm", "unit_offset": True}
SPECS = {
    "LLaMA-like": decoder(block(attention=attention(num_kv_heads=2), repeat=2), tie_embeddings=True),
    "partly rotary": decoder(block(attention=attention(rope={"dim": 4}))),
    "norms everywhere": decoder(block(placement="sandwich", norm=OFFSET, attention=attention(qk_norm={"norm": RMS}))),
    "window": decoder(block(attention=attention(window=10))),
    "capped": decoder(block(attention=attention(softcap=5.0)), logit_softcap=5.0),
    "latent": decoder(block(attention={**LATENT, "v_head_dim": 12})),
    "experts": with_moe(),
}
LENGTHS = [17, 1, 30, 3]
ADAPTERS: dict[str, dict[str, Any] | None] = {
    "whole": None,
    "LoRA": {"lora_alpha": 24},
    "dropped out": {"lora_dropout": 1e-9},
    "DoRA": {"use_dora": True},
}


def model_of(spec: DecoderSpec, adapter: dict[str, Any] | None) -> Decoder:
    torch.manual_seed(0)
    model = Decoder(spec).bfloat16().train()
    if adapter is not None:
        attach(model, LoRASpec(r=4, **adapter))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.05)
    return model


def trained(model: Decoder, lengths: Sequence[int]) -> dict[str, Tensor]:
    """The loss and all gradients."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(64, (1, sum(lengths)), generator=generator)
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    hidden = model.hidden_states(ids, positions, Packed(lengths))[0]
    cap = model.spec.logit_softcap
    loss = chunked_cross_entropy(hidden, model.lm_head.weight, ids[0].roll(-1), chunk=20, softcap=cap)
    loss.backward()
    return {"loss": loss.detach()} | {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}


def distance(found: dict[str, Tensor], true: dict[str, Tensor]) -> tuple[float, float]:
    """Of the losses, and of all gradients together, relative."""
    assert found.keys() == true.keys()
    gradients = [name for name in true if name != "loss"]
    apart = sum(float((found[name] - true[name]).square().sum()) for name in gradients)
    whole = sum(float(true[name].square().sum()) for name in gradients)
    return abs(float(found["loss"] / true["loss"] - 1)), (apart / whole) ** 0.5


CASES = [(name, way) for name in SPECS for way in ADAPTERS if name != "experts" or way in ("whole", "LoRA")]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_loss_and_gradients(name: str, way: str, request: pytest.FixtureRequest) -> None:
    model = model_of(SPECS[name], ADAPTERS[way])
    exact = trained(copy.deepcopy(model).double(), LENGTHS)
    plain = distance(trained(copy.deepcopy(model), LENGTHS), exact)
    request.getfixturevalue("with_native")
    native = distance(trained(model, LENGTHS), exact)
    assert native[0] <= plain[0] + 5e-3
    assert native[1] <= 1.1 * plain[1] + 1e-3


@pytest.mark.usefixtures("with_native")
@pytest.mark.parametrize("adapter", [None, {}], ids=["whole", "LoRA"])
def test_the_operators_are_what_runs(adapter: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = set()

    def noted(name: str, operator: Any) -> Any:
        def run(*inputs: Any, **more: Any) -> Any:
            ran.add(name)
            return operator(*inputs, **more)

        return run

    for name in gradients.__all__:
        monkeypatch.setattr(gradients, name, noted(name, getattr(gradients, name)))
    trained(model_of(SPECS["LLaMA-like"], adapter), LENGTHS)
    updates = {"low_rank_added", "low_rank_backward"}
    assert ran == set(gradients.__all__) - (updates if adapter is None else set())
