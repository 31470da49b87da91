"""The plan of a training step, held against a real one: bytes that stay are equal, the peak is what is allocated."""

from collections.abc import Callable
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from intaglio.errors import UserError
from intaglio.lineage import preset
from intaglio.models.decoder import Decoder
from intaglio.planning import plan_training
from intaglio.specs import DecoderSpec
from intaglio.training.objectives.chunked_loss import chunked_cross_entropy
from measured_memory import CHUNK, DOCUMENTS, TOKENS, Every, Run, allocated
from tiny_specs import GATED, LAYER, ZOO, block, decoder

SPECS = {
    "LLaMA-like": decoder(block(repeat=3), vocab_size=2048),
    "GPT-like": decoder(block(placement="post", norm=LAYER, repeat=3), vocab_size=2048, tie_embeddings=True),
    "a wide vocabulary": decoder(block(), vocab_size=8192),
    "capped logits": decoder(block(feed_forward=GATED), vocab_size=4096, logit_softcap=30.0),
}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SPECS)
def test_the_plan_is_what_a_step_takes(name: str, dtype: str, optimizer: Literal["adamw", "muon"]) -> None:
    plan = plan_training(SPECS[name], TOKENS, dtype=dtype, optimizer=optimizer, chunk=CHUNK, documents=DOCUMENTS)
    run = Run(Decoder(SPECS[name]), getattr(torch, dtype), optimizer, every=0)
    assert plan.resident == run.resident()
    assert plan.peak - plan.resident == pytest.approx(allocated(run.step), rel=0.02)


@pytest.mark.parametrize("every", [1, "selective"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpointed_step_takes_what_is_planned(dtype: str, every: Every) -> None:
    spec = SPECS["LLaMA-like"]
    run = Run(Decoder(spec), getattr(torch, dtype), "adamw", every)
    plan = plan_training(spec, TOKENS, dtype=dtype, chunk=CHUNK, checkpoint_every=every, documents=DOCUMENTS)
    assert plan.peak - plan.resident == pytest.approx(allocated(run.step), rel=0.1)
    assert plan.peak < plan_training(spec, TOKENS, dtype=dtype, chunk=CHUNK).peak


def plain_loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The loss over logits that exist whole."""
    return F.cross_entropy(F.linear(hidden, weight).float(), labels)


def chunked_loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Ours, over the places that have a target."""
    return chunked_cross_entropy(hidden[labels.ne(-100).nonzero()[:, 0]], weight, labels, chunk=CHUNK)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("chunk", "loss"), [(None, plain_loss), (CHUNK, chunked_loss)], ids=["plain", "chunked"])
def test_a_loss_keeps_what_is_counted(
    chunk: int | None, loss: Callable[[Tensor, Tensor, Tensor], Tensor], dtype: str
) -> None:
    spec = ZOO["MHA"]
    hidden = torch.randn(TOKENS, spec.hidden_size, dtype=getattr(torch, dtype), requires_grad=True)
    weight = torch.nn.Parameter(torch.randn(spec.vocab_size, spec.hidden_size, dtype=hidden.dtype))
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss(hidden, weight, torch.randint(spec.vocab_size, (TOKENS,)))
    storages.pop(weight.untyped_storage().data_ptr(), None)
    counted = plan_training(spec, TOKENS, dtype=dtype, chunk=chunk).loss
    assert counted == sum(storage.nbytes() for storage in storages.values())


def test_chunks_spare_the_logits() -> None:
    spec = preset("smollm2-135m").spec
    assert isinstance(spec, DecoderSpec)
    assert isinstance(spec, DecoderSpec)
    whole, chunked = (plan_training(spec, 2048, chunk=chunk) for chunk in (None, 256))
    logits = 2048 * spec.vocab_size * 4
    assert whole.peak - chunked.peak > 2 * logits


def test_short_documents_spare_scores() -> None:
    spec = ZOO["latent"]
    assert plan_training(spec, 64, documents=[16] * 4).peak < plan_training(spec, 64).peak


def test_what_cannot_be_trained_in() -> None:
    with pytest.raises(UserError, match="bfloat16"):
        plan_training(ZOO["MHA"], TOKENS, dtype="bfloat")
    with pytest.raises(UserError, match="documents of 12 tokens in a row of 256"):
        plan_training(ZOO["MHA"], TOKENS, documents=[12])
