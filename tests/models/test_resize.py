"""A vocabulary grows by mean rows, never shrinks, and takes spec, config and tied matrices with it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from intaglio.checkpoints.load import load_directory
from intaglio.checkpoints.save import save_model
from intaglio.models.build import build_model
from intaglio.models.decoder import Decoder
from intaglio.models.resize import grow_vocabulary
from intaglio.specs import DecoderSpec, validate_model
from tiny_specs import block, decoder

SMALL = {"vocab_size": 8, "hidden_size": 16}
RNN = {"vocab_size": 8, "hidden_size": 16, "embedding_size": 16, "cell": {"kind": "lstm"}}
LAYERS = {"layers": [block(attention={"num_heads": 4})]}
KINDS: dict[str, dict[str, Any]] = {
    "recurrent": {"kind": "recurrent", **RNN, "num_layers": 1, "tie_embeddings": True},
    "seq2seq": {"kind": "seq2seq", **RNN, "start_token_id": 1},
    "encoder_decoder": {
        "kind": "encoder_decoder",
        **SMALL,
        "max_position_embeddings": 8,
        "start_token_id": 1,
        "encoder": LAYERS,
        "decoder": LAYERS,
        "tie_embeddings": True,
        "logits_bias": True,
    },
}


def small(*, tied: bool, vocab_size: int = 8) -> Decoder:
    """Its positions are as many as its tokens, so that one cannot be taken for the other unseen."""
    torch.manual_seed(0)
    learned = {"positions": {"kind": "learned"}, "max_position_embeddings": vocab_size}
    return Decoder(decoder(vocab_size=vocab_size, tie_embeddings=tied, **learned)).eval()


@pytest.mark.parametrize("tied", [True, False])
def test_new_rows_are_the_mean_and_the_old_ones_what_they_were(tied: bool) -> None:
    model, old = small(tied=tied), small(tied=tied)
    grow_vocabulary(model, 8, 10)
    for ours, before in ((model.embed_tokens, old.embed_tokens), (model.lm_head, old.lm_head)):
        assert ours.weight.shape == (10, 32)
        assert torch.equal(ours.weight[:8], before.weight)
        torch.testing.assert_close(ours.weight[8:], before.weight.mean(0).expand(2, -1))
    assert (model.lm_head.weight is model.embed_tokens.weight) == tied
    assert model.positions is not None
    assert model.positions.weight.shape == (8, 32)
    assert (model.spec.vocab_size, model.embed_tokens.num_embeddings, model.lm_head.out_features) == (10, 10, 10)
    assert model.spec.num_parameters() == sum(p.numel() for p in model.parameters())
    ids = torch.arange(8)[None]
    with torch.no_grad():
        logits, wanted = model(ids), old(ids)
    assert torch.equal(logits[..., :8], wanted)
    torch.testing.assert_close(logits[..., 8], wanted.mean(-1))
    assert (logits.softmax(-1)[..., 8:] <= 1 / 10 + 1e-6).all()


def test_padding_that_becomes_a_token_is_a_mean_too_and_nothing_shrinks() -> None:
    model, old = small(tied=False, vocab_size=16), small(tied=False, vocab_size=16)
    grow_vocabulary(model, 8, 10)
    assert model.spec == old.spec
    assert torch.equal(model.embed_tokens.weight[10:], old.embed_tokens.weight[10:])
    torch.testing.assert_close(model.embed_tokens.weight[8:10], old.embed_tokens.weight[:8].mean(0).expand(2, -1))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_grows_into_the_model_of_its_new_spec(kind: str) -> None:
    model = build_model(validate_model(KINDS[kind]))
    grow_vocabulary(model, 8, 11)
    wanted = build_model(validate_model({**KINDS[kind], "vocab_size": 11}))
    assert model.spec == wanted.spec
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    assert shapes == {name: tensor.shape for name, tensor in wanted.state_dict().items()}
    assert len(list(model.parameters())) == len(list(wanted.parameters()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_written_says_its_new_size_and_opens_everywhere(tmp_path: Path, dtype: torch.dtype) -> None:
    spec: DecoderSpec = decoder(tie_embeddings=True, vocab_size=8)
    model = Decoder(spec).to(dtype).eval()
    model.lm_head.weight.requires_grad_(False)
    grow_vocabulary(model, 8, 10)
    assert not model.lm_head.weight.requires_grad
    save_model(model, tmp_path / "grown")
    again = load_directory(tmp_path / "grown")
    assert again.spec.vocab_size == 10
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "grown", dtype=torch.float32)
    ids = torch.tensor([[1, 9, 8, 2]])
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, again.float()(ids), atol=1e-5, rtol=1e-5)


def test_a_vocabulary_of_which_more_is_known_than_there_is_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="9 known tokens, 8 rows"):
        grow_vocabulary(small(tied=True), 9, 12)
