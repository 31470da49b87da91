"""Recurrent encoder-decoders by arithmetic, held against the built modules."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from intaglio.engine.session import Seq2SeqSession
from intaglio.errors import UserError
from intaglio.models.build import build_model
from intaglio.models.seq2seq import Seq2Seq
from intaglio.specs import Seq2SeqSpec, validate_model
from tiny_seq2seq import ZOO, random_seq2seq

STEPS = 5

every_one = pytest.mark.parametrize("spec", ZOO.values(), ids=ZOO)


@every_one
def test_parameters_are_those_of_the_built_model(spec: Seq2SeqSpec) -> None:
    assert spec.num_parameters() == sum(parameter.numel() for parameter in Seq2Seq(spec).parameters())
    assert spec.num_active_parameters() == spec.num_parameters()


@every_one
def test_flops_are_what_torch_counts_but_for_the_bridge(spec: Seq2SeqSpec) -> None:
    model, ids = Seq2Seq(spec).eval(), torch.zeros(1, STEPS, dtype=torch.long)
    bridge = 2 * sum(p.numel() for name, p in model.named_parameters() if name.startswith("bridges") and p.ndim == 2)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids, ids)
    assert spec.flops_per_token(STEPS) * STEPS == counter.get_total_flops() - bridge


@every_one
@pytest.mark.parametrize("context", [1, STEPS])
def test_what_is_kept_is_what_the_spec_counts(spec: Seq2SeqSpec, context: int) -> None:
    session = Seq2SeqSession(random_seq2seq(spec).float(), [9])
    with torch.no_grad():
        session.prefill([[3] * context])
        for _ in range(3):
            session.step(torch.tensor([4]))
    held = {part.data_ptr(): part.nbytes for part in session._state}
    if looked := session._memory.looked:
        held |= {part.data_ptr(): part.nbytes for part in (looked.states, looked.keys)}
    assert sum(held.values()) == spec.kv_cache_bytes(context, "float32")
    assert spec.kv_bytes_per_token("float32") == 0


@every_one
def test_it_is_told_apart_by_its_kind(spec: Seq2SeqSpec) -> None:
    assert validate_model(spec.plain()) == spec
    assert isinstance(build_model(spec), Seq2Seq)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"start_token_id": 13}, "start_token_id 13 is beyond the vocabulary of 13"),
        ({"attention": {"score": "dot"}, "bidirectional": True}, "score dot needs states of equal sizes"),
        ({"attention": {"score": "cosine"}}, r"attention\.score"),
        ({"attention": {"score": "dot", "fusion": "never"}}, r"attention\.fusion"),
        ({"atention": None}, r"unknown key 'atention'; did you mean .*attention"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        validate_model({**ZOO["both ways"].plain(), **fields})
