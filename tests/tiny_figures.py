"""Every figure of the atlas at a size that takes next to no time."""

from pathlib import Path

from intaglio.atlas.figure import Figure
from intaglio.atlas.figures.activations import Activations, Gates
from intaglio.atlas.figures.attention_maps import AttentionMaps
from intaglio.atlas.figures.beyond import BeyondTraining
from intaglio.atlas.figures.bottleneck import Bottleneck
from intaglio.atlas.figures.cache_bytes import CacheBytes
from intaglio.atlas.figures.dead_units import DeadUnits
from intaglio.atlas.figures.experts import Experts
from intaglio.atlas.figures.family_tree import FamilyTree
from intaglio.atlas.figures.four_bits import FourBits
from intaglio.atlas.figures.four_terms import FourTerms
from intaglio.atlas.figures.kv_cache import KVCache
from intaglio.atlas.figures.low_rank import LowRank
from intaglio.atlas.figures.masks import Masks
from intaglio.atlas.figures.paging import Batching, Paging
from intaglio.atlas.figures.pipelines import Pipelines
from intaglio.atlas.figures.placement import NormPlacement
from intaglio.atlas.figures.positions import AddedPositions, RotaryPositions
from intaglio.atlas.figures.reach import GradientReach
from intaglio.atlas.figures.sharding import Sharding
from intaglio.atlas.figures.shared_heads import SharedHeads

__all__ = ["tiny_figures"]


def tiny_figures(model: Path) -> dict[str, Figure]:
    """By their names; `model` is a directory with a decoder and its tokenizer, for those that want one."""
    figures: tuple[Figure, ...] = (
        FamilyTree(),
        GradientReach(lengths=(2, 4), hidden_size=4, sequences=2, seeds=1),
        Bottleneck(hidden_size=8, steps=2, batch=2, lengths=(3, 5), words=2),
        AddedPositions(),
        FourTerms(width=8, steps=1, batch=1, window=16, windows=2),
        RotaryPositions(),
        BeyondTraining(trained=16, read=32, width=8, steps=1, batch=1, windows=2),
        Masks(),
        KVCache(tokens=5, hidden_size=16, layers=1),
        CacheBytes(),
        SharedHeads(),
        AttentionMaps(model=str(model)),
        Activations(),
        DeadUnits(width=8, steps=1, batch=1, rates=(1e-3, 1e-2)),
        Gates(),
        Experts(steps=2, batch=2, window=16, width=8),
        NormPlacement(depths=(2, 4), width=8, seeds=1),
        LowRank(width=8, base_steps=1, steps=1, batch=1, window=16, ranks=(1, 2)),
        FourBits(model="none"),
        Sharding(),
        Pipelines(),
        Paging(),
        Batching(),
    )
    return {figure.name: figure for figure in figures}
