"""Every figure of the atlas at a size that takes next to no time."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from api_server import plain_tokenizer, socket_server
from intaglio.atlas.figure import Figure
from intaglio.atlas.figures.activations import Activations, Gates
from intaglio.atlas.figures.alignment_masks import SupervisedTokens
from intaglio.atlas.figures.alignment_pairs import DPORewards, RewardMargins
from intaglio.atlas.figures.alignment_ppo import RewardAgainstKL
from intaglio.atlas.figures.attention_maps import AttentionMaps
from intaglio.atlas.figures.attention_steps import AttentionSteps
from intaglio.atlas.figures.beyond import BeyondTraining
from intaglio.atlas.figures.bidirectional import Bidirectional
from intaglio.atlas.figures.bottleneck import Bottleneck
from intaglio.atlas.figures.cache_bytes import CacheBytes
from intaglio.atlas.figures.cells import Cells
from intaglio.atlas.figures.cross_attention import CrossAttending
from intaglio.atlas.figures.dead_units import DeadUnits
from intaglio.atlas.figures.experts import Experts
from intaglio.atlas.figures.family_tree import FamilyTree
from intaglio.atlas.figures.four_bits import FourBits
from intaglio.atlas.figures.four_terms import FourTerms
from intaglio.atlas.figures.in_context import InContext
from intaglio.atlas.figures.kv_cache import KVCache
from intaglio.atlas.figures.load_curves import LoadCurves
from intaglio.atlas.figures.low_rank import LowRank
from intaglio.atlas.figures.masked_training import MaskedTraining
from intaglio.atlas.figures.masks import Masks
from intaglio.atlas.figures.paging import Batching, Paging
from intaglio.atlas.figures.pipelines import Pipelines
from intaglio.atlas.figures.placement import NormPlacement
from intaglio.atlas.figures.placement_training import NormTraining
from intaglio.atlas.figures.positions import AddedPositions, RotaryPositions
from intaglio.atlas.figures.reach import GradientReach
from intaglio.atlas.figures.roads import Roads
from intaglio.atlas.figures.self_attention import SelfAttention
from intaglio.atlas.figures.sharding import Sharding
from intaglio.atlas.figures.shared_heads import SharedHeads
from intaglio.atlas.figures.stages import ThreeStages
from intaglio.atlas.figures.teacher_forcing import TeacherForcing
from intaglio.evaluation.load.prompts import Vocabulary
from intaglio.serving.app import create_app
from intaglio.serving.service import Service
from ranks import run_ranks
from scripted_engine import ScriptedEngine

__all__ = ["beside", "tiny_figures"]


def beside(patch: pytest.MonkeyPatch) -> None:
    """What figures start beside this process: ranks that cost next to nothing, and a server without a model."""
    for module in ("sharding", "pipelines"):
        patch.setattr(f"intaglio.atlas.figures.{module}.on_ranks", run_ranks)
    patch.setenv("INTAGLIO_NATIVE", "off")
    patch.setattr("intaglio.atlas.figures.load_curves.served", _served)
    patch.setattr("intaglio.evaluation.load.run.words_of", _any_words)  # of its tokenizer none is one token


@contextmanager
def _served(*options: str) -> Iterator[str]:
    engine = ScriptedEngine(plain_tokenizer())
    with socket_server(create_app(Service(engine, engine.tokenizer, ("asked",)))) as address:
        yield address


async def _any_words(*_: object) -> Vocabulary:
    return Vocabulary((" a", " b"))


def tiny_figures(model: Path, rows: Path | None = None) -> dict[str, Figure]:
    """By their names.

    Args:
        model: a directory with a decoder and its tokenizer, for those that want one.
        rows: a folder for small data sets.
    """
    facts, forms = (None, None) if rows is None else _written(rows)
    figures: tuple[Figure, ...] = (
        FamilyTree(),
        Bidirectional(),
        GradientReach(lengths=(2, 4), hidden_size=4, sequences=2, seeds=1),
        Cells(),
        TeacherForcing(hidden_size=8, steps=2, batch=2, words=4),
        Bottleneck(hidden_size=8, steps=2, batch=2, lengths=(3, 5), words=2),
        AttentionSteps(hidden_size=8, steps=2, batch=2),
        SelfAttention(),
        AddedPositions(),
        FourTerms(width=8, steps=1, batch=1, window=16, windows=2),
        RotaryPositions(),
        BeyondTraining(trained=16, read=32, width=8, steps=1, batch=1, windows=2),
        Masks(),
        MaskedTraining(width=8, steps=1, batch=1, window=16),
        CrossAttending(),
        KVCache(tokens=5, hidden_size=16, layers=1),
        CacheBytes(),
        SharedHeads(),
        AttentionMaps(model=str(model)),
        Activations(),
        DeadUnits(width=8, steps=1, batch=1, rates=(1e-3, 1e-2)),
        Gates(),
        Experts(steps=2, batch=2, window=16, width=8),
        NormPlacement(depths=(2, 4), width=8, seeds=1),
        NormTraining(depths=(2, 3), at=(0, 1), steps=2, batch=1, window=16, width=8),
        InContext(model=str(model), examples=(0, 2), drawn=(0, 2)),
        ThreeStages(),
        SupervisedTokens(vocab_size=280),
        RewardMargins(width=8, rows=48, batch=4, base_steps=1, steps=2, fresh=8),
        RewardAgainstKL(width=8, rows=48, batch=4, base_steps=1, steps=1, weights=(0.1, 1.0)),
        DPORewards(width=8, rows=48, batch=4, base_steps=1, steps=2),
        LowRank(width=8, base_steps=1, steps=1, batch=1, window=16, ranks=(1, 2)),
        FourBits(model="none"),
        Sharding(processes=2, width=16, layers=1, row=16),
        Pipelines(ranks=2, micro_batches=4, seconds=0.001, rounds=1),
        Paging(),
        Batching(),
        LoadCurves(model=str(model), levels=(1, 2), prompt=4, answer=3, seconds=0.1),
        Roads(str(model), str(facts), str(forms), ("prompt", "LoRA"), rows=6, asked=4, steps=1, length=128),
    )
    return {figure.name: figure for figure in figures}


def _written(folder: Path) -> tuple[Path, Path]:
    """Rows as the two data sets of `Roads` have them."""
    colours = [
        {"messages": [{"role": "user", "content": name}, {"role": "assistant"}], "ideals": [f"#{place:06}"]}
        for place, name in enumerate("abcdefghijkl")
    ]
    dates = [{"prompt": f"{d} May", "completion": f"05-{d:02}", "locale": "de"} for d in range(1, 13)]
    for name, some in (("facts", colours), ("forms", dates)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some), encoding="utf-8")
    return folder / "facts.jsonl", folder / "forms.jsonl"
