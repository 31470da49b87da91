"""The arithmetic of specs, held against built modules, counted FLOPs and real cache tensors."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula

from intaglio.engine.cache import ContiguousCache
from intaglio.errors import UserError
from intaglio.lineage import presets
from intaglio.models.build import build_model
from intaglio.models.decoder import Decoder
from intaglio.specs import DecoderSpec, ModelSpec, MoESpec
from tiny_specs import DENSE, MIXTURES, ZOO

CONTEXT = 12


@pytest.fixture(autouse=True, scope="module")
def grouped_products_are_counted() -> Iterator[None]:
    """torch's counter has no formula for the product that runs all experts at once: rows * in * out * 2."""

    @register_flop_formula(torch.ops.aten._grouped_mm)
    def grouped_mm(rows: tuple[int, int], weight: tuple[int, int, int], *_: object, **__: object) -> int:
        return 2 * rows[0] * rows[1] * weight[2]

    yield
    from torch.utils.flop_counter import flop_registry

    flop_registry.pop(torch.ops.aten._grouped_mm)


def on_meta(spec: DecoderSpec) -> Decoder:
    """The model without memory; in bfloat16, in which experts run as one grouped product."""
    with torch.device("meta"):
        return Decoder(spec).to(torch.bfloat16)


def counted_flops(spec: DecoderSpec, context: int) -> int:
    """FLOPs of one forward over `context` tokens; on the meta device, since on a CPU attention counts as nothing."""
    model = on_meta(spec)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, context, dtype=torch.long, device="meta"))
    return counter.get_total_flops()


def parameters(module: nn.Module) -> int:
    """Parameters of a module; shared ones count once."""
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("spec", ZOO.values(), ids=ZOO)
def test_parameters_are_those_of_the_built_model(spec: DecoderSpec) -> None:
    assert spec.num_parameters() == parameters(on_meta(spec))


@pytest.mark.parametrize("spec", MIXTURES.values(), ids=MIXTURES)
def test_active_parameters_leave_out_the_experts_not_chosen(spec: DecoderSpec) -> None:
    model = on_meta(spec)
    idle = 0
    for block, layer in zip(spec.blocks, model.layers, strict=True):
        if isinstance(block.feed_forward, MoESpec):
            moe = block.feed_forward
            one = parameters(layer.get_submodule("feed_forward.experts")) // moe.num_experts
            idle += one * (moe.num_experts - moe.num_experts_per_tok)
    assert spec.num_active_parameters() == parameters(model) - idle < spec.num_parameters()


@pytest.mark.parametrize("spec", DENSE.values(), ids=DENSE)
def test_every_parameter_of_a_dense_model_is_active(spec: DecoderSpec) -> None:
    assert spec.num_active_parameters() == spec.num_parameters()


@pytest.mark.parametrize("spec", ZOO.values(), ids=ZOO)
def test_flops_are_what_torch_counts(spec: DecoderSpec) -> None:
    assert spec.flops_per_token(CONTEXT) * CONTEXT == counted_flops(spec, CONTEXT)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spec", ZOO.values(), ids=ZOO)
def test_cache_bytes_are_those_of_real_tensors(spec: DecoderSpec, dtype: str) -> None:
    batch = 2
    cache = ContiguousCache(spec, batch, CONTEXT, dtype=getattr(torch, dtype))
    with torch.no_grad():
        Decoder(spec).to(getattr(torch, dtype))(*prompt(batch), cache)
    assert spec.kv_cache_bytes(CONTEXT, dtype) * batch == sum(tensor.nbytes for tensor in cache.tensors())


def prompt(batch: int) -> tuple[Tensor, Tensor]:
    """Ids and positions of a full cache."""
    positions = torch.arange(CONTEXT).expand(batch, -1)
    return torch.zeros(batch, CONTEXT, dtype=torch.long), positions


@pytest.mark.parametrize("spec", ZOO.values(), ids=ZOO)
def test_until_windows_are_full_a_token_costs_its_bytes(spec: DecoderSpec) -> None:
    assert spec.kv_cache_bytes(1) == spec.kv_bytes_per_token()


def test_a_window_bounds_the_cache() -> None:
    local, full = ZOO["window"], ZOO["MHA"]
    assert local.kv_bytes_per_token() == full.kv_bytes_per_token()
    assert local.kv_cache_bytes(4) == full.kv_cache_bytes(4)
    assert local.kv_cache_bytes(32) == full.kv_cache_bytes(4)


def test_an_unknown_dtype_names_the_nearest() -> None:
    with pytest.raises(UserError, match="bfloat16"):
        ZOO["MHA"].kv_bytes_per_token("bfloat")


@pytest.mark.parametrize("spec", [one.spec for one in presets()], ids=[one.name for one in presets()])
def test_presets_count_what_their_built_models_hold(spec: ModelSpec) -> None:
    with torch.device("meta"):
        assert spec.num_parameters() == parameters(build_model(spec))
