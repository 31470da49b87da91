"""Tensor parallelism over gloo ranks: the same numbers as one process, in float64."""

from typing import Any

import pytest
import torch

from intaglio.adapters.attach import attach
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.parallel.mesh import build_mesh
from intaglio.parallel.tensor import parallelize, require_cuttable
from intaglio.planning.shards import Rank, computed_shape
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.parallel import ParallelSpec
from intaglio.training.objectives.language_model import LanguageModel
from parity import CLOSE, batches, made, taught
from ranks import run_ranks
from tiny_specs import GATED, LATENT, LAYER, MOE, RMS, WIDE, attention, block, decoder

BIASES = {"q": True, "k": True, "v": True, "o": True}

ANIMALS = {
    "GQA, tied, uneven vocabulary": decoder(
        block(attention=attention(num_kv_heads=2), repeat=2), vocab_size=61, tie_embeddings=True, embedding_scale=1.5
    ),
    "biases, learned positions, untied, sandwich": decoder(
        block(
            placement="sandwich",
            norm=LAYER,
            attention={"num_heads": 4, "bias": BIASES, "qk_norm": {"norm": RMS}},
            feed_forward={"intermediate_size": 48, "activation": {"kind": "swish", "learned": True}, "bias": True},
        ),
        positions={"kind": "learned"},
        logit_softcap=20.0,
    ),
    "norm over projections, parallel": decoder(
        block(
            placement="parallel",
            attention=attention(num_kv_heads=2, qk_norm={"norm": LAYER, "over": "projection"}, window=3),
        ),
        positions={"kind": "sinusoidal"},
        final_norm=None,
    ),
    "latent, mixture": decoder(
        block(attention={**LATENT, "q_lora_rank": 12, "bias": True}),
        block(attention=LATENT, feed_forward={**MOE, "shared": GATED, "load_balancing_coef": 0.1}),
    ),
}


BIASED = decoder(block(attention=attention(num_kv_heads=2, bias=BIASES), feed_forward={**WIDE, "bias": True}))
ADAPTED = {
    "LoRA with biases": (BIASED, LoRASpec(r=3, lora_alpha=12, lora_bias=True)),
    "DoRA on columns": (BIASED, LoRASpec(r=3, use_dora=True, target_modules=("q_proj", "v_proj", "up_proj"))),
    "PiSSA": (decoder(block(feed_forward=MOE)), LoRASpec(r=3, lora_alpha=12, init_lora_weights="pissa")),
}


def model_of(name: str) -> Decoder:
    """An animal, or a frozen model with an adapter that has learned something."""
    if name in ANIMALS:
        return made(ANIMALS[name])
    spec, adapter = ADAPTED[name]
    model = made(spec)
    attach(model, adapter)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


LAYOUTS: dict[str, dict[str, Any]] = {
    "all": {},
    "no sequence parallel": {"sequence_parallel": False},
    "no loss parallel": {"loss_parallel": False},
}


def rank(size: int, chosen: dict[str, list[str]]) -> dict[str, float]:
    """What cut models learn beside whole ones, on a rank: some layouts of some animals."""
    found: dict[str, float] = {}
    objective = LanguageModel(chunk=3, z_loss=1e-3)
    mesh = build_mesh(ParallelSpec(tp=size), "cpu")
    for name, layouts in chosen.items():
        steps = [batches(61, 3)[i : i + 1] for i in range(3)]
        alone = taught(model_of(name), objective, steps)
        for layout in layouts:
            model, spec = model_of(name), ParallelSpec(tp=size, **LAYOUTS[layout])
            parallelize(model, mesh, spec)
            assert_planned(model, spec, mesh.get_local_rank("tp"))
            for key, gap in alone.gap(taught(model, objective, steps)).items():
                found[f"{name}: {layout}: {key}"] = gap
    return found


def assert_planned(model: Decoder, layout: ParallelSpec, tp: int) -> None:
    """Every piece has the shape, and is alone in its memory, that the planner says."""
    for name, parameter in model.named_parameters():
        piece: Any = parameter
        piece = piece.to_local()
        assert tuple(piece.shape) == computed_shape(name, tuple(parameter.shape), layout, Rank(tp=tp)), name
        assert piece.untyped_storage().nbytes() == piece.nbytes, name


@pytest.mark.parametrize(
    ("size", "chosen"),
    [
        (2, dict(zip((*ANIMALS, *ADAPTED), (list(LAYOUTS), list(LAYOUTS), *[["all"]] * 5), strict=True))),
        (4, {"latent, mixture": ["all"]}),
    ],
)
def test_cut_models_learn_what_whole_ones_do(size: int, chosen: dict[str, list[str]]) -> None:
    """Logits, gradients and three steps, with and without sequence parallel and loss parallel."""
    for gaps in run_ranks(size, rank, size, chosen, timeout=400):
        assert max(gaps.values()) < CLOSE, {key: gap for key, gap in gaps.items() if gap > CLOSE}


def refusals() -> list[str]:
    """What is said of adapters that tp cannot cut."""
    said = []
    for adapter in (
        LoRASpec(use_dora=True),
        LoRASpec(target_modules=("q_proj", "lm_head")),
    ):
        model = Decoder(BIASED)
        attach(model, adapter)
        with pytest.raises(UserError) as refused:
            require_cuttable(model)
        said.append(str(refused.value))
    return said


def test_adapters_that_need_whole_matrices_are_refused() -> None:
    dora, head = refusals()
    assert "DoRA needs whole columns" in dora
    assert "lm_head" in head
