"""`key=value` on the command line, into mappings and lists."""

from typing import Any

import pytest

from intaglio.errors import UserError
from intaglio.training.changes import apply_change


def _data() -> dict[str, Any]:
    return {"steps": 1, "optimizer": {"kind": "adamw"}, "layers": [{"norm": {"kind": "rms_norm"}}, {"repeat": 2}]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("steps=2", {"steps": 2}),
        ("optimizer.learning_rate=1e-4", {"optimizer": {"kind": "adamw", "learning_rate": 1e-4}}),
        ("schedule.warmup=3", {"schedule": {"warmup": 3}}),
        ("layers.0.norm.kind=layer_norm", {"layers": [{"norm": {"kind": "layer_norm"}}, {"repeat": 2}]}),
        (
            "layers.1.attention.num_heads=2",
            {"layers": [_data()["layers"][0], {"repeat": 2, "attention": {"num_heads": 2}}]},
        ),
        ("layers.1={repeat: 3}", {"layers": [_data()["layers"][0], {"repeat": 3}]}),
    ],
)
def test_a_change_sets_one_value_and_leaves_the_rest(change: str, expected: dict[str, Any]) -> None:
    data = _data()
    apply_change(data, change)
    assert data == _data() | expected


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("steps.more=2", "'steps' holds no keys"),
        ("layers.repeat=2", "layers.repeat: there is no item 'repeat'; a list of 2: its items are numbered from 0"),
        ("layers.2.repeat=2", "there is no item '2'"),
        ("layers.-1.repeat=2", "there is no item '-1'"),
        ("layers.1.repeat.more=2", "'repeat' holds no keys"),
        ("steps", "not key=value"),
    ],
)
def test_what_cannot_be_changed_is_named(change: str, said: str) -> None:
    data = _data()
    with pytest.raises(UserError) as refused:
        apply_change(data, change)
    assert said in str(refused.value)
    assert data == _data()
