"""Packed weights give the logits that plain ones give, for every kind of part."""

import copy

import pytest
import torch

from intaglio.engine.cache import ContiguousCache
from intaglio.engine.packed import PackedLinear, can_pack, pack
from intaglio.models.decoder import Decoder
from tiny_specs import ZOO

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
    packed = pack(model)
    # one product instead of three may round a sum differently, by one step of bf16 at most
    torch.testing.assert_close(packed(ids), plain, rtol=2**-6, atol=2**-6)


@needs_bf16
@torch.inference_mode()
def test_packed_decodes_from_a_cache() -> None:
    model = model_of("MHA")
    ids = torch.randint(0, model.spec.vocab_size, (2, 6))
    plain = model(ids)
    cache = ContiguousCache(model.spec, 2, 6, dtype=torch.bfloat16)
    packed = pack(model)
    steps = [packed(ids[:, i : i + 1], torch.full((2, 1), i), cache) for i in range(6)]
    torch.testing.assert_close(torch.cat(steps, dim=1), plain, rtol=2**-5, atol=2**-5)


@needs_bf16
def test_a_tied_embedding_keeps_its_plain_weights() -> None:
    model = model_of("MHA")
    tied = Decoder(model.spec.updated(tie_embeddings=True)).to(torch.bfloat16)
    weights = tied.embed_tokens.weight.detach().clone()
    pack(tied)
    assert torch.equal(tied.embed_tokens.weight, weights)
    assert isinstance(dict(tied.named_children())["lm_head"], PackedLinear)


def test_only_bf16_on_the_cpu_is_packed() -> None:
    model = model_of("MHA")
    assert not can_pack(copy.deepcopy(model).float())
    with torch.device("meta"):
        assert not can_pack(Decoder(model.spec).to(torch.bfloat16))
