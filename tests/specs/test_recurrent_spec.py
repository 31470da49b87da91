"""The arithmetic of recurrent specs, held against built modules, counted FLOPs and real states."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from intaglio.errors import UserError
from intaglio.models.recurrent import RecurrentEncoder, RecurrentModel
from intaglio.parts.recurrent import Recurrent
from intaglio.specs import DecoderSpec, GRUCellSpec, LSTMCellSpec, RecurrentSpec, RNNCellSpec, validate_model
from tiny_specs import decoder
from torch_recurrent import CELLS

STEPS = 12


def spec(**fields: Any) -> RecurrentSpec:
    sizes = {"vocab_size": 50, "embedding_size": 12, "hidden_size": 20, "cell": {"kind": "lstm"}}
    return RecurrentSpec.model_validate({**sizes, **fields})


ZOO = {
    **{name: spec(cell=cell, num_layers=3) for name, cell in CELLS.items()},
    "one layer": spec(),
    "tied": spec(embedding_size=20, tie_embeddings=True, num_layers=2),
}
READERS = {
    "both ways": spec(bidirectional=True, num_layers=3),
    "both ways, gru": spec(bidirectional=True, num_layers=2, cell=GRUCellSpec()),
}


@pytest.mark.parametrize("one", ZOO.values(), ids=ZOO)
def test_parameters_are_those_of_the_built_model(one: RecurrentSpec) -> None:
    assert one.num_parameters() == sum(parameter.numel() for parameter in RecurrentModel(one).parameters())
    assert one.num_active_parameters() == one.num_parameters()


@pytest.mark.parametrize("one", READERS.values(), ids=READERS)
def test_parameters_in_both_directions(one: RecurrentSpec) -> None:
    below = sum(parameter.numel() for parameter in RecurrentEncoder(one).parameters())
    assert one.num_parameters() == below + one.vocab_size * 2 * one.hidden_size


@pytest.mark.parametrize("one", ZOO.values(), ids=ZOO)
@pytest.mark.parametrize("form", ["forward", "unrolled"])
def test_flops_are_what_torch_counts(one: RecurrentSpec, form: str) -> None:
    model, ids = RecurrentModel(one), torch.zeros(1, STEPS, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.logits(getattr(model.recurrent, form)(model.embed_tokens(ids))[0])
    assert one.flops_per_token(STEPS) * STEPS == counter.get_total_flops()


@pytest.mark.parametrize("one", [*ZOO.values(), *READERS.values()], ids=[*ZOO, *READERS])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_kept_is_the_state_however_long_the_sequence(one: RecurrentSpec, dtype: str) -> None:
    model = RecurrentEncoder(one).to(getattr(torch, dtype))
    for steps in (1, STEPS):
        _, state = model.hidden_states(torch.zeros(1, steps, dtype=torch.long))
        held = sum(part.nbytes for part in state)
        assert held == one.state_bytes(dtype) == one.kv_cache_bytes(steps, dtype)
    assert one.kv_bytes_per_token(dtype) == 0


def test_rnn_gru_and_lstm_count_as_one_to_three_to_four() -> None:
    """Cell matrices and biases; torch.nn has two biases a set, which keeps the ratio, and `after` one bias more."""
    counts = []
    for cell in (RNNCellSpec(), GRUCellSpec(), LSTMCellSpec()):
        counts.append(cell.num_parameters(12, 20))
        built = Recurrent(cell, 12, 20)
        assert sum(parameter.numel() for parameter in built.parameters()) == counts[-1]
    assert counts == [20 * (12 + 20 + 1), 3 * counts[0], 4 * counts[0]]
    assert GRUCellSpec(reset="after").num_parameters(12, 20) == counts[1] + 20


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"tie_embeddings": True}, "equal sizes.*12.*20"),
        ({"dropout": 0.5}, "one layer"),
        ({"cell": {"kind": "gru", "reset": "never"}}, "reset"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        validate_model({**spec().plain(), **fields})


class TestAnyModel:
    def test_kinds(self) -> None:
        for one in (*ZOO.values(), *READERS.values(), decoder()):
            assert validate_model(one.plain()) == one
        plain = decoder().plain()
        plain.pop("kind")
        assert isinstance(validate_model(plain), DecoderSpec)

    def test_an_unknown_kind_names_the_nearest(self) -> None:
        with pytest.raises(UserError, match=r"did you mean .*recurrent"):
            validate_model({"kind": "recurent"})

    def test_an_unknown_key_is_named_without_the_kind(self) -> None:
        with pytest.raises(UserError, match=r"unknown key 'hiden_size'; did you mean .*hidden_size"):
            validate_model({**spec().plain(), "hiden_size": 3})
