"""Counted activations, held against what autograd is seen to keep: equal integers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from transformers import AutoConfig

from intaglio.adapters.attach import attach
from intaglio.models.decoder import Decoder
from intaglio.parts.context import Causal, Packed
from intaglio.parts.moe import Router
from intaglio.planning.activations import activations
from intaglio.planning.adapters import ranks_of
from intaglio.specs import DecoderSpec
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.families import read_config
from intaglio.training.stepping import tricks
from intaglio.training.stepping.tricks import recompute_activations
from measured_memory import kept
from native_build import either_way, native_file, with_native
from tiny_specs import LATENT, ZOO, attention, block, decoder, with_attention, with_moe
from zoo import ZOO as ANIMALS
from zoo import Animal

__all__ = ["either_way", "native_file", "with_native"]  # fixtures

TOKENS = 12
DOCUMENTS = [5, 6, 1]
RMS_OFFSET = {"kind": "rms_norm", "unit_offset": True}

SPECS = {
    **ZOO,
    "offset norms": decoder(block(norm=RMS_OFFSET, attention=attention(qk_norm={"norm": RMS_OFFSET}))),
    "soft-capped, one head for all": with_attention(num_kv_heads=1, softcap=20.0, rope=None),
    "soft-capped, all heads, a window": with_attention(softcap=20.0, window=4),
    "one head, partly rotary": with_attention(num_heads=1, rope={"dim": 4}),
    "latent, values as wide as keys": decoder(block(attention={**LATENT, "v_head_dim": 12})),
    "groups by their best": with_moe(router={"num_groups": 4, "top_groups": 2, "renormalise": False}),
    "groups by their best, with a bias": with_moe(router={"num_groups": 4, "top_groups": 2, "bias_correction": True}),
    "narrow experts": with_moe(expert={"intermediate_size": 12, "activation": "gelu"}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.usefixtures("either_way")
def test_a_row_keeps_what_is_counted(spec: DecoderSpec, dtype: torch.dtype) -> None:
    model = Decoder(spec).to(dtype)
    assert activations(spec, TOKENS, dtype.itemsize).kept == kept(model, Causal(), torch.arange(TOKENS)[None])
    for documents in ([TOKENS], [5, 6, 1]):
        positions = torch.cat([torch.arange(length) for length in documents])[None]
        counted = activations(spec, TOKENS, dtype.itemsize, documents)
        assert counted.kept == kept(model, Packed(documents), positions)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_checkpointed_layer_keeps_its_input(dtype: torch.dtype, every: int) -> None:
    spec = decoder(block(attention=attention(rope=None), repeat=4))
    model = Decoder(spec).to(dtype)
    recompute_activations(model, every)
    counted = activations(spec, TOKENS, dtype.itemsize, checkpoint_every=every)
    assert counted.kept == kept(model, Causal(), torch.arange(TOKENS)[None])
    plain = activations(spec, TOKENS, dtype.itemsize).kept
    one = activations(decoder(block(attention=attention(rope=None)), final_norm=None), TOKENS, dtype.itemsize)
    assert counted.kept < plain
    row = TOKENS * spec.hidden_size * dtype.itemsize
    again = one.kept - one.by_kind["inputs"] - row  # but what it has kept, its input
    assert counted.backward.recomputed == (again if every == 1 else 0)  # of two the last layer keeps everything
    flowing = row + 2 * TOKENS * 48 * dtype.itemsize  # gradients of the layer's result, and of both halves inside
    if every == 1:
        assert counted.backward.total == sum(counted.backward.by_kind.values()) + again + flowing


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_every_family_keeps_what_is_counted(dtype: torch.dtype) -> None:
    """All that transformers' models vary: scaled rotations, windows in some layers, biases, ties, odd widths."""
    specs = {name: spec_of(animal) for name, animal in ANIMALS.items()}
    counted = {name: activations(spec, TOKENS, dtype.itemsize, DOCUMENTS).kept for name, spec in specs.items()}
    assert {name: kept_packed(Decoder(spec).to(dtype)) for name, spec in specs.items()} == counted


def spec_of(animal: Animal) -> DecoderSpec:
    config = AutoConfig.for_model(animal.model_type, pad_token_id=None, **animal.config).to_dict()
    spec: DecoderSpec = read_config({**config, "architectures": [animal.architecture]})
    return spec


def kept_packed(model: Decoder) -> int:
    return kept(model, Packed(DOCUMENTS), torch.cat([torch.arange(length) for length in DOCUMENTS])[None])


@pytest.mark.parametrize(("dtype", "every"), [(torch.float32, 1), (torch.bfloat16, 1), (torch.bfloat16, 2)])
def test_of_every_kind_a_checkpointed_layer_keeps_its_input(dtype: torch.dtype, every: int) -> None:
    """Beside what autograd shows: rotations, which are among its arguments, and what a router remembers."""
    for name, spec in SPECS.items():
        model = Decoder(spec).to(dtype)
        recompute_activations(model, every)
        counted = activations(spec, TOKENS, dtype.itemsize, DOCUMENTS, checkpoint_every=every)
        assert counted.kept <= activations(spec, TOKENS, dtype.itemsize, DOCUMENTS).kept
        again = every == 1 or len(spec.blocks) == 1  # all layers: then no operation keeps rotations
        unseen = counted.by_kind.get("rotary", 0) if again else 0
        assert counted.kept == kept_packed(model) + remembered(model, every) + unseen, name


def remembered(model: Decoder, every: int) -> int:
    """Bytes of the scores and choices that routers of checkpointed layers hold."""
    routers = [
        module for layer in list(model.layers)[::every] for module in layer.modules() if isinstance(module, Router)
    ]
    return sum(tensor.nbytes for router in routers for tensor in (router.scores, router.chosen) if tensor is not None)


ADAPTED = (
    "GQA",
    "sandwich rms_norm",
    "plain with biases",
    "latent, biases",
    "experts and a shared one",
    "narrow experts",
)


@pytest.mark.parametrize(
    ("name", "trains"), [*((name, "all") for name in SPECS), *((name, "adapter") for name in ADAPTED)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_selective_layer_keeps_its_products(
    name: str, dtype: torch.dtype, either_way: str, trains: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = SPECS[name]
    model, products = Decoder(spec).to(dtype), remembered_products(monkeypatch)
    lora = LoRASpec(r=4, lora_alpha=6) if trains == "adapter" else None
    if lora:
        attach(model, lora)
    recompute_activations(model, "selective")
    inputs = kept_packed(model) + remembered(model, 1)
    counted = activations(
        spec, TOKENS, dtype.itemsize, DOCUMENTS, checkpoint_every="selective",
        ranks=None if lora is None else ranks_of(spec, lora),
    )  # fmt: skip
    angles = counted.by_kind.get("rotary", 0)  # kept by their layers' arguments, where autograd does not show them
    more = counted.kept - angles - inputs - products()
    if either_way == "native" and dtype == torch.bfloat16:  # which keep no log-sums of short documents
        sums = len(spec.blocks) * spec.blocks[0].attention.num_heads * TOKENS * torch.float32.itemsize
        lows = len(ranks_of(spec, lora)) * TOKENS * 4 * dtype.itemsize if lora else 0  # nor what A has made
        assert 0 <= more <= sums + lows
    else:
        assert more == 0


def remembered_products(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Bytes of what selective checkpointing keeps beside autograd, once a forward has run."""
    stores: list[dict[Any, dict[int, Any]]] = []

    def remember(operations: Any) -> Any:
        contexts = create_selective_checkpoint_contexts(operations)
        stores.append(contexts[0].storage)
        return contexts

    def count() -> int:
        found = [leaf for store in stores for calls in store.values() for leaf in tree_leaves(list(calls.values()))]
        tensors = [leaf.val for leaf in found if isinstance(getattr(leaf, "val", None), torch.Tensor)]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        return sum(storages.values())

    monkeypatch.setattr(tricks, "create_selective_checkpoint_contexts", remember)
    return count


def test_parts_add_up() -> None:
    counted = activations(ZOO["experts and a shared one"], TOKENS, 4)
    assert sum(counted.by_kind.values()) == counted.kept
    assert counted.by_kind.keys() == {"inputs", "residual", "rotary", "norm", "attention", "moe"}
