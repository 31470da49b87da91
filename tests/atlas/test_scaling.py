"""The power law: its fit against a hand-made one, its interval against repetition, and a toy run of the whole."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from intaglio.atlas.history import climb
from intaglio.atlas.rungs import Shape
from intaglio.atlas.scaling import FULL_SCALING, QUICK_SCALING, Scaling, fit
from running import unmeasured

SIZES = np.repeat([1e5, 2e5, 4e5, 8e5], 3)
TOKENS = np.tile([1e6, 2e6, 4e6], 4)


def test_an_exact_law_is_found() -> None:
    law = fit(SIZES, TOKENS, 20 * SIZES**-0.08 * TOKENS**-0.1)
    assert law.coefficients == pytest.approx([np.log(20), 0.08, 0.1])
    assert law.exponent(1) == pytest.approx((0.08, 0.08, 0.08))
    assert law.predict(1.6e6, 4e6).mean == pytest.approx(20 * 1.6e6**-0.08 * 4e6**-0.1)
    assert law.freedom == 9


def test_intervals_hold_what_they_promise() -> None:
    """Of 2,000 noisy laws, 95 % of the intervals hold the exponent, and as many predictions the further run."""
    draw = np.random.default_rng(0)
    exact = np.log(20) - 0.08 * np.log(SIZES) - 0.1 * np.log(TOKENS)
    further = np.log(20) - 0.08 * np.log(1.6e6) - 0.1 * np.log(4e6)
    held = np.zeros(2)
    for _ in range(2000):
        law = fit(SIZES, TOKENS, np.exp(exact + draw.normal(0, 0.02, len(exact))))
        alpha, predicted = law.exponent(1), law.predict(1.6e6, 4e6)
        held += [
            alpha.low <= 0.08 <= alpha.high,
            predicted.low <= np.exp(further + draw.normal(0, 0.02)) <= predicted.high,
        ]
    assert np.abs(held / 2000 - 0.95).max() < 0.02


def test_the_larger_size_is_predicted_and_then_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unmeasured(monkeypatch)
    draw = random.Random(0)
    rows = [{"text": " ".join(draw.choices(["ab", "cde", "fgh", "ij"], k=60))} for _ in range(160)]
    text = tmp_path / "source.jsonl"
    text.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    sizes = (Shape(1, 8, 2), Shape(1, 16, 2), Shape(2, 16, 2))
    toy = Scaling(str(text), 25_000, 270, 16, 2, sizes, Shape(2, 24, 2), steps=(2, 4), rates=(1e-3, 1e-2))
    said: list[str] = []
    found = climb([toy], tmp_path / "out", said.append)["scaling"]
    parts = json.loads((tmp_path / "out" / "scaling.json").read_text(encoding="utf-8"))["parts"]
    assert list(parts)[-2:] == ["prediction", "larger"]
    assert said[-1].endswith(": larger")
    assert len(found.rows) == 3 * 2 + 1
    losses = [parts[f"{size}, {steps} steps"]["loss"] for size in ("1x8", "1x16", "2x16") for steps in (2, 4)]
    assert [row[4] for row in found.rows[:-1]] == [f"{loss:.3f}" for loss in losses]
    between = [int(row[1].replace(",", "")) for row in found.rows[:-1:2]]
    law = fit(np.repeat(between, 2).astype(float), np.tile([64.0, 128.0], 3), np.array(losses))
    larger = int(found.rows[-1][1].replace(",", ""))
    assert parts["prediction"] == pytest.approx(list(law.predict(larger, 128)))
    low, high = parts["prediction"][1:]
    where = "inside" if low <= parts["larger"]["loss"] <= high else "outside"
    assert found.rows[-1][4].endswith(where)
    assert [verdict.interval.mean for verdict in found.verdicts] == pytest.approx(law.coefficients[1:])


@pytest.mark.parametrize("size", [FULL_SCALING, QUICK_SCALING], ids=["full", "quick"])
def test_sizes_grow_and_leave_degrees_of_freedom(size: Scaling) -> None:
    counts = [size._parameters(shape) for shape in (*size.sizes, size.larger)]
    assert counts == sorted(counts)
    assert counts[-1] > 2 * counts[-2]
    assert len(size.sizes) >= 4
    assert len(size.steps) >= 3
