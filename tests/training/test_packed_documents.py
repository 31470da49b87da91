"""Packed documents do not know each other: case 8 of what other projects failed on, for every kind of attention."""

import pytest
import torch

from intaglio.models.decoder import Decoder
from intaglio.parts.context import Packed
from tiny_specs import ZOO


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
