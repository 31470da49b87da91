"""Packed weights give the logits that plain ones give, for every kind of part, in oneDNN's layout and in ours."""

import copy

import pytest
import torch

from intaglio.engine import packed
from intaglio.engine.cache import ContiguousCache
from intaglio.engine.packed import PackedLinear, PanelLinear, can_pack, pack
from intaglio.engine.quantized import weight_bytes
from intaglio.models.decoder import Decoder
from intaglio.parts.norm import RMSNorm
from native_build import native_file, with_native
from tiny_specs import ZOO

__all__ = ["native_file", "with_native"]  # fixtures

needs_bf16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bf16 on this processor"
)


def model_of(name: str) -> Decoder:
    torch.manual_seed(0)
    return Decoder(ZOO[name]).to(torch.bfloat16).eval()


@needs_bf16
@pytest.mark.parametrize("name", ZOO)
@torch.inference_mode()
def test_packed_equals_plain(name: str) -> None:
    model = model_of(name)
    ids = torch.randint(0, model.spec.vocab_size, (3, 9))
    plain = model(ids)
    # one product instead of three may round a sum differently, by one step of bf16 at most
    torch.testing.assert_close(pack(model)(ids), plain, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("name", ZOO)
@torch.inference_mode()
def test_native_operators_are_as_exact_as_plain_torch(name: str, with_native: None) -> None:
    model = model_of(name)
    ids = torch.randint(0, model.spec.vocab_size, (3, 9))
    exact = copy.deepcopy(model).float()(ids)
    plain_error = (model(ids) - exact).norm()
    assert (pack(model)(ids) - exact).norm() < 1.2 * plain_error


@torch.inference_mode()
def test_native_operators_take_the_place_of_every_norm_and_linear(with_native: None) -> None:
    model = pack(model_of("GQA"))
    kinds = {type(module) for module in model.modules()}
    assert PanelLinear in kinds
    assert not kinds & {torch.nn.Linear, RMSNorm, PackedLinear}


@needs_bf16
@pytest.mark.parametrize("units", [True, False])
@torch.inference_mode()
def test_many_rows_are_left_to_matrix_units_where_there_are_some(
    units: bool, with_native: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_has_matrix_units", lambda: units)
    model = model_of("GQA")
    ids = torch.randint(0, model.spec.vocab_size, (3, 9))
    plain = model(ids)
    laid = pack(model, rows=64)
    kinds = {type(module) for module in laid.modules()}
    assert (PackedLinear in kinds, PanelLinear in kinds) == (units, not units)
    torch.testing.assert_close(laid(ids).float(), plain.float(), rtol=2**-5, atol=2**-5)
    few = {type(module) for module in pack(model_of("GQA"), rows=8).modules()}
    assert PanelLinear in few


@needs_bf16
@torch.inference_mode()
def test_packed_decodes_from_a_cache() -> None:
    model = model_of("MHA")
    ids = torch.randint(0, model.spec.vocab_size, (2, 6))
    plain = model(ids)
    cache = ContiguousCache(model.spec, 2, 6, dtype=torch.bfloat16)
    decoder = pack(model)
    steps = [decoder(ids[:, i : i + 1], torch.full((2, 1), i), cache) for i in range(6)]
    torch.testing.assert_close(torch.cat(steps, dim=1), plain, rtol=2**-5, atol=2**-5)


@needs_bf16
def test_a_tied_embedding_keeps_its_plain_weights() -> None:
    model = model_of("MHA")
    tied = Decoder(model.spec.updated(tie_embeddings=True)).to(torch.bfloat16)
    weights, taken = tied.embed_tokens.weight.detach().clone(), weight_bytes(tied)
    pack(tied)
    assert torch.equal(tied.embed_tokens.weight, weights)
    assert isinstance(dict(tied.named_children())["lm_head"], PackedLinear)
    assert weight_bytes(tied) == taken + weights.nbytes  # the output matrix is no longer the same memory


def test_only_bf16_on_the_cpu_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("MHA")
    assert not can_pack(copy.deepcopy(model).float())
    with torch.device("meta"):
        assert not can_pack(Decoder(model.spec).to(torch.bfloat16))
    monkeypatch.setattr(packed, "_onednn_has_bf16", lambda: False)
    assert not can_pack(model)
