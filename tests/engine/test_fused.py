"""A layer in one call has the bits of its operators one by one; what one call does not serve keeps those."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from intaglio.engine.fused import FusedLayer
from intaglio.engine.packed import pack
from intaglio.engine.paged import Chunk, PagedMemory, windows_of
from intaglio.engine.quantized import Weights
from intaglio.engine.runner import Runner
from intaglio.models.decoder import Decoder
from intaglio.specs import DecoderSpec
from native_build import native_file, with_native
from tiny_specs import MOE, ZOO, attention, block, decoder
from toy_llms import random_model

__all__ = ["native_file", "with_native"]  # fixtures

pytestmark = pytest.mark.usefixtures("with_native")
SERVED = {
    "grouped": ZOO["GQA"],
    "biased": ZOO["bias on q"],
    "two windows": decoder(block(attention=attention(window=3)), block(attention=attention(window=6, num_kv_heads=2))),
    "soft-capped": decoder(block(attention=attention(softcap=5.0, num_kv_heads=2), repeat=2)),
    "half of a head turned": decoder(block(attention=attention(rope={"dim": 4}), repeat=2)),
}
NOT_SERVED = {
    "experts": decoder(block(feed_forward=MOE)),
    "another norm": ZOO["pre layer_norm"],
    "another place": ZOO["sandwich rms_norm"],
    "side by side": ZOO["parallel rms_norm"],
}


def packed(spec: DecoderSpec, dtype: torch.dtype, weights: Weights | None) -> Decoder:
    return pack(random_model(spec).to(dtype), weights)


def steps(model: Decoder, dtype: torch.dtype, *, deterministic: bool = False) -> list[Tensor]:
    """Two sequences: both prompts, a token each, then a token of one beside three of the other."""
    groups = len(windows_of(model.spec, 32))
    memory = PagedMemory(model.spec, [16] * groups, 4, 32, dtype=dtype)
    for tensor in memory.tensors():
        tensor.fill_(float("nan"))
    runner = Runner(model, memory, deterministic=deterministic)

    def chunk(sequence: int, start: int, tokens: Sequence[int]) -> Chunk:
        table = [5, 2, 9] if sequence == 0 else [1, 0, 7]
        return Chunk(tokens, start, [table] * groups, 12)

    return [
        runner.hidden_states([chunk(0, 0, [3, 1, 4, 1, 5]), chunk(1, 0, [9, 2])]),
        runner.hidden_states([chunk(0, 5, [6]), chunk(1, 2, [5])]),
        runner.hidden_states([chunk(1, 3, [3, 5, 8]), chunk(0, 6, [9])]),
    ]


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize(
    ("dtype", "weights"), [(torch.bfloat16, None), (torch.bfloat16, "int4"), (torch.float32, "int8")]
)
def test_one_call_has_the_same_bits(
    name: str, dtype: torch.dtype, weights: Weights | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = packed(SERVED[name], dtype, weights)
    assert all(isinstance(layer, FusedLayer) for layer in model.layers)
    fused = steps(model, dtype)
    monkeypatch.setattr(FusedLayer, "forward", lambda self, x, angles, context: self.block(x, angles, context))
    for one, other in zip(fused, steps(model, dtype), strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)


def test_deterministic_steps_go_operator_by_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    model = packed(SERVED["grouped"], torch.bfloat16, "int8")
    expected = steps(model, torch.bfloat16)  # no product here hangs on its number of rows
    monkeypatch.setattr("intaglio.native.layer_", None)
    for one, other in zip(expected, steps(model, torch.bfloat16, deterministic=True), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", NOT_SERVED)
def test_what_is_not_served_keeps_its_operators(name: str) -> None:
    model = packed(NOT_SERVED[name], torch.bfloat16, None)
    assert not any(isinstance(layer, FusedLayer) for layer in model.layers)
    assert all(hidden.isfinite().all() for hidden in steps(model, torch.bfloat16))


def test_one_call_is_made_only_of_what_is_there() -> None:
    """Without positions to turn, or without pages, the block does it."""
    model = packed(decoder(block(attention=attention(rope=None))), torch.bfloat16, None)
    assert all(hidden.isfinite().all() for hidden in steps(model, torch.bfloat16))
    ids = torch.arange(12)[None]
    with torch.inference_mode():
        assert model(ids).isfinite().all()
