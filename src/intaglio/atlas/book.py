"""The figures of the atlas, in the order of the story."""

from typing import Final

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
from intaglio.errors import UserError, nearest

__all__ = ["BOOK", "chosen"]

BOOK: Final[dict[str, Figure]] = {
    figure.name: figure
    for figure in (
        FamilyTree(),
        Bidirectional(),
        GradientReach(),
        Cells(),
        TeacherForcing(),
        Bottleneck(),
        AttentionSteps(),
        SelfAttention(),
        AddedPositions(),
        FourTerms(),
        RotaryPositions(),
        BeyondTraining(),
        Masks(),
        MaskedTraining(),
        CrossAttending(),
        KVCache(),
        CacheBytes(),
        SharedHeads(),
        AttentionMaps(),
        Activations(),
        DeadUnits(),
        Gates(),
        Experts(),
        NormPlacement(),
        NormTraining(),
        InContext(),
        ThreeStages(),
        SupervisedTokens(),
        RewardMargins(),
        RewardAgainstKL(),
        DPORewards(),
        LowRank(),
        FourBits(),
        Sharding(),
        Pipelines(),
        Paging(),
        Batching(),
        LoadCurves(),
        Roads(),
    )
}
"""Every figure by its name, at the sizes of the report."""


def chosen(names: list[str]) -> list[Figure]:
    """The figures of these names, in the order of the book; all of them where no name is given.

    Raises:
        UserError: no figure has such a name; names the nearest ones.
    """
    for name in names:
        if name not in BOOK:
            raise UserError(f"unknown figure {name!r}", where="--only", mend=nearest(name, BOOK))
    return [figure for name, figure in BOOK.items() if name in names or not names]
