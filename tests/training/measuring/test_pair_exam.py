"""Held-out pairs: margins against a forward of each answer alone, and the gain that is told."""

import numpy as np
import pytest
import torch

from intaglio.data.preference_encoding import PairExample
from intaglio.data.store import InMemory
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier, init_head
from intaglio.specs import validate
from intaglio.training.batching.forks import forked
from intaglio.training.measuring.measure_specs import PairsSpec
from intaglio.training.measuring.pair_exam import PairExam, compare_pairs
from tiny_specs import block, decoder
from toy_llms import PADDED_VOCAB, random_model

PAIRS = [([5, 6, 7], [8], [9, 10, 11]), ([12], [13, 14, 15], [16, 2]), ([17, 18], [19, 20], [21]), ([3], [4], [5])]


def toy() -> Decoder:
    layer = block(attention={"num_heads": 4, "num_kv_heads": 2, "rope": {}})
    return random_model(decoder(layer, vocab_size=PADDED_VOCAB, max_position_embeddings=64))


def exam(**spec: object) -> PairExam:
    store = InMemory([forked(example(row, *pair)) for row, pair in enumerate(PAIRS)])
    return PairExam(validate(PairsSpec, spec), store, 2, 12, "best_fit")


def example(row: int, *ids: list[int]) -> PairExample:
    prompt, chosen, rejected = (np.array(some, dtype=np.int32) for some in ids)
    return PairExample(prompt, chosen, rejected, f"rows:{row}")


@torch.no_grad()
def likelihood(model: Decoder, prompt: list[int], answer: list[int]) -> list[float]:
    """Of each token of the answer."""
    told = model(torch.tensor([prompt + answer]))[0].log_softmax(-1)
    return [float(told[len(prompt) - 1 + place, token]) for place, token in enumerate(answer)]


@pytest.mark.parametrize("by", ["mean", "sum"])
def test_a_policy_is_read_by_its_likelihoods(by: str) -> None:
    model = toy().train()
    count = getattr(np, by)
    expected = sorted(
        count(likelihood(model.eval(), prompt, chosen)) - count(likelihood(model, prompt, rejected))
        for prompt, chosen, rejected in PAIRS
    )
    model.train()
    assert sorted(exam(by=by).take(model)) == pytest.approx(expected, abs=1e-4)
    assert model.training


def test_a_reward_model_is_read_by_its_rewards() -> None:
    model = SequenceClassifier(toy(), 1)
    init_head(model, 1)
    with torch.no_grad():
        expected = [
            model(torch.tensor([prompt + chosen])).item() - model(torch.tensor([prompt + rejected])).item()
            for prompt, chosen, rejected in PAIRS
        ]
    assert sorted(exam().take(model)) == pytest.approx(sorted(expected), abs=1e-4)


def test_only_so_many_pairs_are_read() -> None:
    assert len(exam(rows=3).take(toy())) == 3


def test_nothing_held_out_is_nothing_to_read() -> None:
    assert PairExam(PairsSpec(), InMemory([]), 2, 12, "best_fit").take(toy()) == []


def test_the_gain_is_told_with_its_interval() -> None:
    said: list[str] = []
    report = compare_pairs([0.5, -0.5, -0.5, 0.0], [0.5, 0.5, -0.5, 0.1], said.append)
    assert report["before"]["accuracy"] == 0.25
    assert report["after"]["accuracy"] == 0.75
    assert report["gain"]["difference"] == 0.5
    assert report["gain"]["low"] <= 0.5 <= report["gain"]["high"]
    assert "+50.0%" in said[-1]


def test_a_model_that_had_learned_nothing_has_no_gain() -> None:
    report = compare_pairs(None, [0.5, -0.5], lambda line: None)
    assert report["after"]["accuracy"] == 0.5
    assert not {"before", "gain"} & report.keys()
