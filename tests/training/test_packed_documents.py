"""Packed documents do not know each other: case 8 of what other projects failed on, for every kind of attention."""

import numpy as np
import pytest
import torch

from intaglio.data.examples import Example
from intaglio.data.packing import Method
from intaglio.data.store import InMemory
from intaglio.models.decoder import Decoder
from intaglio.parts.context import Packed
from intaglio.training.batching.batches import evaluation_batches
from intaglio.training.loop import Evaluation, evaluate
from intaglio.training.objectives.language_model import LanguageModel
from tiny_specs import RMS, ZOO, attention, block, decoder

OFFSET = {"kind": "rms_norm", "unit_offset": True}


@pytest.mark.parametrize("name", ZOO)
@torch.no_grad()
def test_packed_equals_separate(name: str) -> None:
    torch.manual_seed(0)
    model = Decoder(ZOO[name]).eval()
    lengths = [7, 1, 12, 3]
    documents = [torch.randint(0, model.spec.vocab_size, (1, length)) for length in lengths]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    packed = model(torch.cat(documents, dim=1), positions, Packed(lengths))
    for found, document in zip(packed.split(lengths, dim=1), documents, strict=True):
        torch.testing.assert_close(found, model(document), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_changing_one_document_leaves_the_others() -> None:
    torch.manual_seed(0)
    model = Decoder(ZOO["MHA"]).eval()
    ids = torch.randint(0, 64, (1, 5))
    positions = torch.tensor([[0, 1, 2, 0, 1]])
    before = model(ids, positions, Packed([3, 2]))
    ids[0, 1] += 1 if ids[0, 1] < 63 else -1
    after = model(ids, positions, Packed([3, 2]))
    assert torch.equal(before[:, 3:], after[:, 3:])
    assert not torch.equal(before[:, 1:3], after[:, 1:3])


def gemma3_like() -> Decoder:
    """Windows shorter than rows, norms on both sides, normed queries and keys."""
    heads = {"num_kv_heads": 1, "qk_norm": {"norm": RMS}}
    local = block(placement="sandwich", norm=OFFSET, attention=attention(**heads, window=4, rope={"theta": 100.0}))
    whole = block(placement="sandwich", norm=OFFSET, attention=attention(**heads))
    torch.manual_seed(0)
    return Decoder(decoder({"repeat": 2, "pattern": [local, whole]}, tie_embeddings=True, embedding_scale=5.5))


def test_held_out_loss_is_the_same_packed_or_not() -> None:
    """Case 38: rows of many lengths, of which some learn only their end."""
    dice, model = np.random.default_rng(0), gemma3_like()
    rows = [Example(dice.integers(0, 64, n).astype(np.int32), np.arange(n) > n % 5, f"r:{n}") for n in range(2, 24)]
    token_bytes = torch.arange(64)

    def measured(packing: Method, micro_batch: int) -> Evaluation:
        return evaluate(
            model, LanguageModel(), [*evaluation_batches(InMemory(rows), micro_batch, 24, packing)], token_bytes
        )

    alone = measured("none", 1)
    for packed in (measured("best_fit", 1), measured("best_fit", 3), measured("none", 4)):
        assert packed.loss == pytest.approx(alone.loss, rel=1e-6)
        assert packed.bits_per_byte == pytest.approx(alone.bits_per_byte, rel=1e-6)
        assert packed.accuracy == alone.accuracy
