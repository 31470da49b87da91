"""Activations computed again: the same gradients from fewer bytes."""

from functools import partial
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from intaglio.models.decoder import Decoder
from intaglio.parts.context import Packed
from intaglio.parts.moe import Router
from intaglio.specs import DecoderSpec
from intaglio.training.stepping.tricks import recompute_activations
from tiny_specs import ZOO, attention, block, decoder

Which = int | Literal["selective"]
DOCUMENTS = [9, 3, 20]
KINDS = [
    "pre rms_norm",
    "post layer_norm",
    "parallel layer_norm",
    "soft-capped",
    "latent",
    "window",
    "experts in groups",
]


def forward(model: Decoder, documents: list[int]) -> Tensor:
    torch.manual_seed(1)
    ids = torch.randint(0, model.spec.vocab_size, (1, sum(documents)))
    positions = torch.cat([torch.arange(length) for length in documents])[None]
    return model.hidden_states(ids, positions, Packed(documents))


def model_of(spec: DecoderSpec, which: Which) -> Decoder:
    torch.manual_seed(0)
    model = Decoder(spec)
    if which:
        recompute_activations(model, which)
    return model


def gradients(spec: DecoderSpec, which: Which) -> dict[str, Tensor]:
    model = model_of(spec, which)
    out = forward(model, DOCUMENTS)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("which", [1, 2, "selective"])
def test_gradients_are_the_same(name: str, which: Which) -> None:
    plain, again = gradients(ZOO[name], 0), gradients(ZOO[name], which)
    assert plain.keys() == again.keys()
    for parameter in plain:
        torch.testing.assert_close(again[parameter], plain[parameter], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("which", [1, "selective"])
def test_routers_remember_the_forward_and_not_its_repetition(which: Which) -> None:
    model = model_of(ZOO["experts in groups"], which)
    out = forward(model, DOCUMENTS)
    routers = [module for module in model.modules() if isinstance(module, Router)]
    remembered = [(router.scores, router.chosen) for router in routers]
    assert remembered
    out.sum().backward()
    for router, (scores, chosen) in zip(routers, remembered, strict=True):
        assert router.scores is scores
        assert router.chosen is chosen


def left_allocated(spec: DecoderSpec, which: Which) -> int:
    """Bytes that a forward leaves behind for its backward."""
    model, results = model_of(spec, which), []
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        results.append(forward(model, [200, 56]))
    assert seen.profiler is not None
    events = seen.profiler.kineto_results.events()
    return sum(event.nbytes() for event in events if event.name() == "[memory]")


def test_selective_stands_between_all_and_nothing() -> None:
    spec = decoder(block(repeat=4, attention=attention(num_kv_heads=2)), max_position_embeddings=256)
    everything, selective, inputs = map(partial(left_allocated, spec), (0, "selective", 1))
    assert inputs < 0.5 * selective
    assert selective < 0.75 * everything
