"""The ladder from GPT-1 to LLaMA at the smallest size that climbs it, and the rungs it is made of."""

import json
import math
import pickle
import random
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from intaglio.atlas.history import climb
from intaglio.atlas.ladder import FULL, QUICK, Ladder
from intaglio.atlas.rungs import Shape, architecture, chosen, claims, read_rungs, spec_of
from intaglio.atlas.texts import prepare_text
from intaglio.errors import UserError
from intaglio.specs import AttentionSpec, FeedForwardSpec, MoESpec
from intaglio.training.loop import Loop, NotFinite, Step
from running import unmeasured

SHAPES = {"plain": Shape(2, 16, 4), "deep": Shape(4, 16, 4)}


@pytest.fixture(autouse=True)
def unpictured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs draw no curves of their own and do not measure the machine."""
    unmeasured(monkeypatch)


@pytest.fixture
def small(tmp_path: Path) -> Ladder:
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=4)) for _ in range(60)]
    rows = [{"text": " ".join(draw.choices(words, k=30)), "file": f"{number // 2}.txt"} for number in range(80)]
    text = tmp_path / "source.jsonl"
    text.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return Ladder(
        text=str(text),
        characters=6_000,
        vocab_size=280,
        context=16,
        plain_shape=SHAPES["plain"],
        deep_shape=SHAPES["deep"],
        steps=4,
        batch=2,
        share=0.5,
        rates=(1e-3, 1e-2),
        seeds=2,
        repeats=1,
    )


def test_every_rung_is_measured_and_every_claim_judged(small: Ladder, tmp_path: Path) -> None:
    said: list[str] = []
    found = climb([small], tmp_path / "out", said.append)["ladder"]
    rungs = read_rungs()
    assert [row[0] for row in found.rows] == [rung.title for rung in rungs.values()]
    assert len(found.verdicts) == len(claims())
    assert len(said) == len(rungs) * (2 + 2) + 2  # rates and seeds; the text before, the speeds after
    parts = json.loads((tmp_path / "out" / "ladder.json").read_text(encoding="utf-8"))["parts"]
    for name, row in zip(rungs, found.rows, strict=True):
        tried = {rate: parts[f"{name}, rate {rate:g}"]["loss"] for rate in small.rates}
        assert row[3] == f"{min(tried, key=lambda rate: tried[rate]):g}"
    losses = {name: np.array([parts[f"{name}, seed {s}"]["loss"] for s in (1, 2)]) for name in rungs}
    gqa = next(one for one in found.verdicts if one.claim.startswith("grouped-query"))
    assert gqa.interval.mean == pytest.approx((1.01 * losses["no-biases"] - losses["gqa"]).mean())
    assert found.rows[1][6].startswith(f"{(losses['post-norm'] - losses['pre-norm']).mean():,.3f} [")
    assert float(found.rows[0][5]) == pytest.approx(
        np.mean([parts[f"post-norm, seed {s}"]["bits_per_byte"] for s in (1, 2)]), abs=6e-4
    )
    assert (tmp_path / "out" / "ladder.png").read_bytes().startswith(b"\x89PNG")


def test_rungs_of_a_seed_read_the_same_batches(small: Ladder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    step = Loop.step

    def watched(loop: Loop) -> Step:
        take = loop.stream.step

        def kept(count: int) -> Any:
            batches = take(count)
            seen.extend(batch.ids for batch in batches)
            return batches

        with monkeypatch.context() as patch:
            patch.setattr(loop.stream, "step", kept)
            return step(loop)

    prepare_text(small.text, small.characters, small.vocab_size, tmp_path)
    monkeypatch.setattr(Loop, "step", watched)
    for name in ("post-norm", "moe"):
        small._trained(name, 1e-3, 1, 3, tmp_path / name)
    assert len(seen) == 6
    assert all(torch.equal(a, b) for a, b in zip(seen[:3], seen[3:], strict=True))


def test_a_part_can_be_sent_to_another_process(small: Ladder, tmp_path: Path) -> None:
    prepare_text(small.text, small.characters, small.vocab_size, tmp_path)
    few = replace(small, only=("rotary",), rates=(1e-3,))
    _, _, runs, _ = few.stages()
    part = runs["rotary, seed 1"]
    ours = part(tmp_path, {})
    shutil.rmtree(tmp_path / "rotary-seed-1")
    assert pickle.loads(pickle.dumps(part))(tmp_path, {})["loss"] == ours["loss"]


def test_a_run_that_diverges_counts_as_knowing_nothing(
    small: Ladder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> None:
        raise NotFinite("the loss of step 2 is not finite")

    monkeypatch.setattr("intaglio.atlas.ladder.train_on_text", broken)
    told = small._trained("post-norm", 1.0, 1, 4, tmp_path / "run")
    assert told["loss"] == math.log(280)
    assert told["diverged"]


@pytest.mark.parametrize("size", [FULL, QUICK], ids=["full", "quick"])
def test_rungs_that_are_fitted_have_as_many_active_parameters(size: Ladder) -> None:
    counts = {name: size._spec(name).num_active_parameters() for name in size.climbed}
    for name, rung in size.rungs.items():
        if rung.fit:
            assert rung.below is not None
            assert counts[name] == pytest.approx(counts[rung.below], rel=0.01)
    assert size._spec("moe").num_parameters() > 2 * counts["moe"]
    assert len(size._spec("pre-norm-deep").blocks) == 24


def test_each_rung_changes_what_it_says() -> None:
    rungs = read_rungs()
    build = partial(architecture, rungs=rungs, shapes=SHAPES, context=16)
    specs = {name: spec_of(build(name), 300) for name in rungs}
    blocks = {name: spec.blocks for name, spec in specs.items()}
    assert blocks["post-norm"][0].placement == "post"
    assert {blocks[name][0].placement for name in rungs if not name.startswith("post-norm")} == {"pre"}
    assert specs["pre-norm"].positions is not None
    assert specs["rotary"].positions is None
    llama = blocks["no-biases"][0]
    assert isinstance(llama.attention, AttentionSpec)
    assert isinstance(llama.feed_forward, FeedForwardSpec)
    assert llama.attention.rope is not None
    assert (llama.feed_forward.activation, llama.feed_forward.gated, llama.feed_forward.bias) == ("silu", True, False)
    assert llama.norm.kind == "rms_norm"
    assert not any(llama.attention.bias.plain().values())
    attentions = [blocks[name][0].attention for name in ("no-biases", "gqa", "mqa")]
    assert [one.kv_heads for one in attentions if isinstance(one, AttentionSpec)] == [4, 2, 1]
    assert isinstance(blocks["moe"][0].feed_forward, MoESpec)
    assert specs["no-biases"].tie_embeddings
    assert not specs["untied"].tie_embeddings
    assert [block.attention.window for block in blocks["banded"]] == [None, 32]


def test_a_swap_replaces_what_a_rung_changes() -> None:
    rungs = read_rungs(["feed_forward.activation=relu2", "norm.kind=layer_norm"])
    assert rungs["swiglu"].changed == {"feed_forward.activation": "relu2", "feed_forward.gated": True}
    assert rungs["swiglu"].title == "SwiGLU with feed_forward.activation=relu2"
    assert rungs["rms-norm"].changed["norm"] == {"kind": "layer_norm"}
    assert rungs["post-norm"] == read_rungs()["post-norm"]  # the first rung changes nothing
    feed_forward = spec_of(architecture("no-biases", rungs, SHAPES, 16), 300).blocks[0].feed_forward
    assert isinstance(feed_forward, FeedForwardSpec)
    assert feed_forward.activation == "relu2"


def test_a_swap_of_nothing_and_an_unknown_rung_are_refused() -> None:
    with pytest.raises(UserError, match=r"--swap: no rung changes 'feed_forward.activaton'; did you mean feed_forward"):
        read_rungs(["feed_forward.activaton=relu2"])
    with pytest.raises(UserError, match="--only: unknown rung 'rotery'; did you mean rotary"):
        chosen(read_rungs(), ["rotery"])


def test_a_document_is_a_file(small: Ladder, tmp_path: Path) -> None:
    told = prepare_text(small.text, small.characters, small.vocab_size, tmp_path / "made")
    rows = [json.loads(line)["text"] for line in (tmp_path / "made" / "text.jsonl").read_text("utf-8").splitlines()]
    assert told == {"documents": len(rows), "characters": sum(map(len, rows))}
    assert told["characters"] == small.characters
    assert {len(row.split()) for row in rows[:-1]} == {59}  # 30 words and 30, the last and the first run together
