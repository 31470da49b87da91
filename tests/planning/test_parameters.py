"""Names and shapes of parameters, held against the built modules."""

from math import prod

import pytest
import torch

from intaglio.lineage import presets
from intaglio.models.decoder import Decoder
from intaglio.planning.parameters import decays, is_matrix, parameter_shapes
from intaglio.specs import DecoderSpec
from tiny_specs import ZOO

DECODERS = {one.name: one.spec for one in presets() if isinstance(one.spec, DecoderSpec)}


@pytest.mark.parametrize("spec", ZOO.values(), ids=ZOO)
def test_parameters_are_those_of_the_built_model(spec: DecoderSpec) -> None:
    with torch.device("meta"):
        model = Decoder(spec)
    assert parameter_shapes(spec) == {name: tuple(p.shape) for name, p in model.named_parameters()}


@pytest.mark.parametrize("spec", DECODERS.values(), ids=DECODERS)
def test_shapes_add_up_to_the_count(spec: DecoderSpec) -> None:
    assert sum(prod(shape) for shape in parameter_shapes(spec).values()) == spec.num_parameters()


def test_matrices_stand_between_the_embeddings() -> None:
    matrices = {name for name, shape in parameter_shapes(ZOO["experts"]).items() if is_matrix(name, shape)}
    projections = {f"layers.0.attention.{one}_proj.weight" for one in "qkvo"}
    assert matrices == projections | {"layers.0.feed_forward.router.weight"}  # the experts' are stacks of matrices


def test_what_stands_in_no_layer_never_decays() -> None:
    for spec in ZOO.values():
        shapes = parameter_shapes(spec)
        outside = {"embed_tokens.weight", "positions.weight", "lm_head.weight"}
        assert {name for name, shape in shapes.items() if len(shape) > 1 and not decays(name, shape)} <= outside
        assert not any(decays(name, shape) for name, shape in shapes.items() if len(shape) == 1)
    assert decays("decoder.layers.0.feed_forward.experts.up_proj", (8, 16, 32))
