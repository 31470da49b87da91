"""The claims of the history at the smallest size that runs them, and what their measurements rest on."""

import json
import os
import random
import signal
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from intaglio.atlas.contestants import KINDS, architecture, spec_of
from intaglio.atlas.copying import Copying, right_letters
from intaglio.atlas.gradients import Gradients, gradient_norms
from intaglio.atlas.history import FULL, QUICK, climb
from intaglio.atlas.language_models import LanguageModels
from intaglio.atlas.parts import Claims, Part
from intaglio.atlas.runs import best_rate
from intaglio.atlas.throughput import Throughput
from intaglio.models.recurrent import RecurrentModel
from intaglio.specs import RecurrentSpec
from intaglio.training.loop import Loop, Step
from running import unmeasured

RATES = (1e-3, 3e-3)


@pytest.fixture(autouse=True)
def unpictured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs draw no curves of their own and do not measure the machine."""
    unmeasured(monkeypatch)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def parts_of(claims: Claims) -> dict[str, Part]:
    return {name: part for stage in claims.stages() for name, part in stage.items()}


def language_models(folder: Path, **changes: Any) -> LanguageModels:
    text = "".join(random.Random(0).choices("abc def.\n", k=3_000))
    sizes: dict[str, Any] = {"characters": 2_400, "window": 8, "parameters": 3_000, "width": 8, "steps": 4, "batch": 4}
    return LanguageModels(
        write_lines(folder / "text.jsonl", [{"text": text}]), **{**sizes, "rates": (3e-3,), "seeds": 2, **changes}
    )


def copying(folder: Path, **changes: Any) -> Copying:
    draw = random.Random(0)
    texts = ["".join(draw.choices(string.ascii_lowercase, k=1 + number % 6)) for number in range(400)]
    data = write_lines(folder / "copies.jsonl", [{"prompt": text, "completion": text} for text in texts])
    sizes: dict[str, Any] = {"lengths": (2, 4), "questions": 3, "hidden_size": 8, "steps": 3, "batch": 4, "seeds": 2}
    return Copying(data, **{**sizes, "rates": (3e-3,), "seeds": 2, **changes})


def gradients() -> Gradients:
    return Gradients(lengths=(2, 24), hidden_size=16, sequences=3, seeds=2)


def throughput() -> Throughput:
    return Throughput(lengths=(4, 16), sequences=2, parameters=3_000, width=8, repeats=1, seeds=2)


def test_every_claim_ends_in_a_table_a_picture_and_verdicts(tmp_path: Path) -> None:
    claims: list[Claims] = [language_models(tmp_path), gradients(), copying(tmp_path), throughput()]
    said: list[str] = []
    found = climb(claims, tmp_path / "out", said.append)
    assert len(said) == sum(len(parts_of(one)) for one in claims)
    for name, finding in found.items():
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert all(len(row) == len(finding.columns) for row in finding.rows)
        assert all(np.isfinite(verdict.interval).all() for verdict in finding.verdicts)
    assert [row[0] for row in found["language-models"].rows] == list(KINDS)
    assert len(found["copying"].verdicts) == 3
    said.clear()
    assert climb(claims, tmp_path / "out", said.append) == found
    assert said == []


def test_all_models_read_the_same_windows(tmp_path: Path) -> None:
    claims = language_models(tmp_path)
    results = {name: parts_of(claims)[name](tmp_path / "out", {}) for name in ("GRU, seed 1", "Transformer, seed 1")}
    seen = [result["curve"][-1][0] for result in results.values()]
    assert seen[0] == seen[1] == 4 * 4 * 9  # steps of windows of 8 characters and the EOS
    rows = (tmp_path / "out" / "windows.jsonl").read_text(encoding="utf-8").splitlines()
    assert {len(json.loads(row)["text"]) for row in rows} == {8}
    assert len(rows) == 2_400 // 8


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    claims = language_models(tmp_path)
    run = tmp_path / "out" / "GRU-seed-1"
    make = parts_of(claims)["GRU, seed 1"]
    first = make(tmp_path / "out", {})
    before = (run / "model" / "model.safetensors").stat().st_mtime_ns
    assert make(tmp_path / "out", {}) == first
    assert (run / "model" / "model.safetensors").stat().st_mtime_ns == before


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = language_models(tmp_path)
    make = parts_of(claims)["GRU, seed 1"]
    step = Loop.step

    def interrupted(loop: Loop) -> Step:
        if loop.done == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return step(loop)

    monkeypatch.setattr(Loop, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "out", {})
    monkeypatch.setattr(Loop, "step", step)
    gone_on, at_once = make(tmp_path / "out", {}), make(tmp_path / "other", {})
    assert [gone_on[name] for name in ("loss", "curve")] == [at_once[name] for name in ("loss", "curve")]


@pytest.mark.parametrize("size", [FULL, QUICK], ids=["full", "quick"])
def test_contestants_are_equal_in_parameters(size: tuple[Claims, ...]) -> None:
    for claims in size:
        if isinstance(claims, LanguageModels | Throughput):
            counts = [spec_of(architecture(k, claims.parameters, claims.width, 64)).num_parameters() for k in KINDS]
            assert max(counts) / min(counts) < 1.05


def test_rates_are_tried_on_a_seed_of_their_own_and_the_best_is_taken(tmp_path: Path) -> None:
    names = list(parts_of(copying(tmp_path, rates=RATES)))
    assert names[:2] == ["without attention, rate 0.001", "without attention, rate 0.003"]
    assert names[4:] == [f"{m} attention, seed {seed}" for seed in (1, 2) for m in ("without", "with")]
    results = {"RNN, rate 0.001": {"loss": 2.0}, "RNN, rate 0.003": {"loss": 1.0}}
    assert best_rate(results, "RNN", RATES) == 3e-3
    assert best_rate({}, "RNN", (0.5,)) == 0.5


def test_gradient_norms_are_those_of_the_definition() -> None:
    spec = {"vocab_size": 7, "embedding_size": 5, "hidden_size": 4, "cell": {"kind": "lstm"}}
    torch.manual_seed(0)
    model = RecurrentModel(RecurrentSpec.model_validate(spec)).double()
    ids = torch.randint(7, (3, 6))

    def loss(first: torch.Tensor, row: int) -> torch.Tensor:
        x = torch.cat((first[None], model.embed_tokens(ids[row, 1:-1])))[None]
        outputs, _ = model.recurrent(x)
        return F.cross_entropy(model.logits(outputs[:, -1]), ids[row, -1:])

    for row, norm in enumerate(gradient_norms(model, ids).tolist()):
        first = model.embed_tokens(ids[row, 0]).detach()
        shifts = torch.eye(5, dtype=torch.float64) * 1e-6
        slopes = [(loss(first + shift, row) - loss(first - shift, row)).item() / 2e-6 for shift in shifts]
        assert norm == pytest.approx(np.linalg.norm(slopes), rel=1e-5)


def test_the_gradients_do_what_the_history_says(tmp_path: Path) -> None:
    claims = Gradients(lengths=(2, 64), hidden_size=32, sequences=4, seeds=2)
    finding = claims.finding({name: part(tmp_path, {}) for name, part in parts_of(claims).items()})
    shown = {verdict.claim.split(":")[0] for verdict in finding.verdicts if verdict.shown}
    assert shown >= {"RNN, scale 0.5", "LSTM, gates open", "GRU, gates open"}
    assert "GRU" not in shown  # its gates begin half open, and half of half of half is lost


def test_letters_count_where_they_stand() -> None:
    assert right_letters("abcd", "abcd") == 1
    assert right_letters("abcd", "abxdz") == 0.75
    assert right_letters("abcd", "bcd") == right_letters("abcd", "") == 0
