"""Names and shapes of parameters, held against the built modules."""

from math import prod

import pytest
import torch

from intaglio.lineage import presets
from intaglio.models.decoder import Decoder
from intaglio.planning.parameters import is_matrix, parameter_shapes
from intaglio.specs import DecoderSpec
from tiny_specs import ZOO


@pytest.mark.parametrize("spec", ZOO.values(), ids=ZOO)
def test_parameters_are_those_of_the_built_model(spec: DecoderSpec) -> None:
    with torch.device("meta"):
        model = Decoder(spec)
    assert parameter_shapes(spec) == {name: tuple(p.shape) for name, p in model.named_parameters()}


@pytest.mark.parametrize("spec", [one.spec for one in presets()], ids=[one.name for one in presets()])
def test_shapes_add_up_to_the_count(spec: DecoderSpec) -> None:
    assert sum(prod(shape) for shape in parameter_shapes(spec).values()) == spec.num_parameters()


def test_matrices_stand_between_the_embeddings() -> None:
    matrices = {name for name, shape in parameter_shapes(ZOO["experts"]).items() if is_matrix(name, shape)}
    projections = {f"layers.0.attention.{one}_proj.weight" for one in "qkvo"}
    assert matrices == projections | {"layers.0.feed_forward.router.weight"}  # the experts' are stacks of matrices
