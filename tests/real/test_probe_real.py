"""Base or instruct, told by the weights of two real models whose makers say which they are."""

from pathlib import Path

import pytest
import torch

from intaglio.cli.show_kind import kind_data

pytestmark = [pytest.mark.real, pytest.mark.prove]


def probed(folder: Path) -> tuple[str, float, float]:
    """What is said, the log-probability of the turn's end, and chance."""
    torch.set_num_threads(1)
    data = kind_data(folder, probe=True)
    assert data is not None
    return data["kind"], data["probe"]["logprob"], data["probe"]["uniform"]


def test_smollm2_instruct_ends_its_turns(smollm2_dir: Path) -> None:
    kind, logprob, uniform = probed(smollm2_dir)
    assert kind == "instruct"
    assert logprob > uniform / 4


def test_gemma_3_base_does_not(gemma3_dir: Path) -> None:
    kind, logprob, uniform = probed(gemma3_dir)
    assert kind == "base"
    assert logprob < uniform / 2
