"""The probe tells a model that ends its answers from one that goes on."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from intaglio.checkpoints.load import load_directory
from intaglio.checkpoints.models import load_tokenizer
from intaglio.evaluation.probe import EXCHANGES, probe_turn_ends
from intaglio.text.chat import ChatTemplate
from intaglio.text.chat_templates import load_template
from toy_llms import toy_tokenizer


class Ending(torch.nn.Module):
    """Gives one token a logit of `height`, all others 0."""

    def __init__(self, token: int, height: float) -> None:
        super().__init__()
        self.spec = SimpleNamespace(vocab_size=320)
        self.token, self.height = token, torch.nn.Parameter(torch.tensor(height))

    def forward(self, ids: Tensor) -> Tensor:
        logits = torch.zeros(*ids.shape, 320)
        logits[..., self.token] = self.height
        return logits


@pytest.mark.parametrize(("height", "kind", "ended"), [(9.0, "instruct", 8), (-9.0, "base", 0), (1.0, "base", 8)])
def test_the_end_of_the_turn_is_read_off_behind_the_answer(height: float, kind: str, ended: int) -> None:
    probe = probe_turn_ends(Ending(2, height), toy_tokenizer())
    assert (probe.kind, probe.ended, probe.asked) == (kind, ended, len(EXCHANGES))
    assert probe.uniform == pytest.approx(-math.log(320), abs=1e-5)
    assert probe.logprob == pytest.approx(height - math.log(319 + math.exp(height)), abs=1e-4)


def test_another_template_has_another_end() -> None:
    tokenizer = toy_tokenizer()
    zephyr = ChatTemplate(load_template("zephyr"), {"eos_token": "<|endoftext|>"})
    assert probe_turn_ends(Ending(0, 9.0), tokenizer, zephyr).kind == "instruct"
    assert probe_turn_ends(Ending(2, 9.0), tokenizer, zephyr).kind == "base"


def test_a_model_that_answers_is_found_out(parrot_dir: Path) -> None:
    """The parrot ends its turn behind the last letter of what it says, and nowhere else."""
    tokenizer, model = load_tokenizer(parrot_dir), load_directory(parrot_dir)
    assert probe_turn_ends(model, tokenizer, exchanges=[("Say é", "é")]).kind == "instruct"
    assert probe_turn_ends(model, tokenizer).kind == "base"
