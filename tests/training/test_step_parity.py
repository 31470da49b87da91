"""One step's loss and gradients are transformers' on the same ragged rows, padded there, packed here."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from intaglio.checkpoints.load import load_directory
from intaglio.data.examples import Example
from intaglio.training.batching.batches import make_batch
from intaglio.training.objectives.language_model import LanguageModel
from zoo import ZOO, build

FAMILIES = ["llama", "gemma2", "gpt2"]


def animal_of(family: str) -> str:
    return next(name for name in ZOO if name.startswith(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients(family: str, tmp_path: Path) -> None:
    theirs = build(ZOO[animal_of(family)], seed=3)
    theirs.save_pretrained(tmp_path / "weights")
    ours = load_directory(tmp_path / "weights")
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 61, length).astype(np.int32) for length in (17, 3, 9, 1, 22)]
    masks = [rng.random(len(row)) < 0.6 for row in rows]
    width = max(map(len, rows))
    ids, attention = torch.zeros(5, width, dtype=torch.long), torch.zeros(5, width, dtype=torch.long)
    labels = torch.full((5, width), -100)
    for r, (row, mask) in enumerate(zip(rows, masks, strict=True)):
        mask[0] = False
        ids[r, : len(row)] = torch.from_numpy(row.astype(np.int64))
        attention[r, : len(row)] = 1
        labels[r, : len(row)] = torch.where(torch.from_numpy(mask), ids[r, : len(row)], -100)
    logits = theirs(ids, attention_mask=attention).logits
    plain = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    plain.backward()
    batch = make_batch([Example(row, mask, "") for row, mask in zip(rows, masks, strict=True)])
    found = LanguageModel(chunk=11)(ours, batch).total / batch.num_targets
    found.backward()
    assert found.item() == pytest.approx(plain.item(), rel=1e-5)
    for parameter in theirs.parameters():
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    theirs.save_pretrained(tmp_path / "gradients")
    expected = dict(load_directory(tmp_path / "gradients").named_parameters())
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, name
        torch.testing.assert_close(parameter.grad, expected[name].detach(), rtol=1e-4, atol=1e-6)
