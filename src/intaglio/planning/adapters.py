"""What an adapter adds to a decoder: a rank beside each of its matrices, and the tensors that train. No torch."""

from collections.abc import Iterator, Mapping
from math import prod

from intaglio.errors import UserError
from intaglio.planning.parameters import Shape, parameter_shapes
from intaglio.specs import DecoderSpec
from intaglio.specs.adapter import LoRASpec, named

__all__ = ["in_layers", "largest_matrix", "ranks_of", "trained_shapes"]


def ranks_of(spec: DecoderSpec, lora: LoRASpec) -> dict[str, int]:
    """The rank beside each matrix, by the path of its module, or of its stack.

    Raises:
        UserError: a target that no module is called here; a family's own names are `adapters.targets`' to know.
    """
    matrices = {_module(name): name for name, shape in parameter_shapes(spec).items() if len(shape) > 1}
    if lora.target_modules == "all-linear":
        targets = [path for path, name in matrices.items() if in_layers(name)]
    else:
        unknown = [name for name in lora.target_modules if not any(named(path, [name]) for path in matrices)]
        if unknown:
            raise UserError(f"no matrix is called {unknown[0]!r}", where="target_modules")
        targets = [path for path in matrices if named(path, lora.target_modules)]
    return {path: lora.rank(path) for path in targets if not named(path, lora.exclude_modules)}


def trained_shapes(spec: DecoderSpec, lora: LoRASpec, ranks: Mapping[str, int]) -> dict[str, Shape]:
    """The tensors that train, by name and shape.

    Args:
        spec: of the model.
        lora: of the adapter.
        ranks: see `ranks_of`.
    """
    shapes = parameter_shapes(spec)
    trained = {name: shape for path, rank in ranks.items() for name, shape in _low_rank(shapes, path, rank, lora)}
    trained |= {name: shape for name, shape in shapes.items() if named(_module(name), lora.modules_to_save)}
    if lora.bias != "none":
        biases = (name for name in shapes if name.endswith(".bias"))
        trained |= {name: shapes[name] for name in biases if lora.bias == "all" or _module(name) in ranks}
    if lora.trainable_token_indices:
        tied = spec.tie_embeddings and lora.ensure_weight_tying
        rows = (len(lora.trainable_token_indices), spec.hidden_size)
        trained |= {f"{table}.rows": rows for table in ("embed_tokens", "lm_head")[: 1 if tied else 2]}
    return trained


def largest_matrix(spec: DecoderSpec) -> int:
    """Elements of the largest matrix in the layers, of one expert where there are several."""
    return max(prod(shape[-2:]) for name, shape in parameter_shapes(spec).items() if in_layers(name) and len(shape) > 1)


def _low_rank(shapes: Mapping[str, Shape], path: str, rank: int, lora: LoRASpec) -> Iterator[tuple[str, Shape]]:
    *stack, outputs, inputs = shapes[path] if path in shapes else shapes[f"{path}.weight"]
    yield f"{path}.lora_A", (*stack, rank, inputs)
    yield f"{path}.lora_B", (*stack, outputs, rank)
    if lora.lora_bias:
        yield f"{path}.lora_bias", (outputs,)
    if lora.use_dora:
        yield f"{path}.lora_magnitude_vector", (outputs,)


def _module(name: str) -> str:
    """The module of a parameter; a stack of experts counts as one."""
    path, _, last = name.rpartition(".")
    return path if last in ("weight", "bias") else name


def in_layers(name: str) -> bool:
    """Whether it is a matrix of a layer that is not a router's."""
    return "layers" in name.split(".") and ".router." not in name
