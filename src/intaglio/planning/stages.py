"""The layers of a model cut into the stages of a pipeline, and which rank has which. No torch.

Stage 0 holds the embeddings too, the last one the final norm and the output matrix; `cuts` says which layers.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from intaglio.errors import UserError
from intaglio.planning.cuts import layers_of_stages
from intaglio.specs import DecoderSpec
from intaglio.specs.parallel import PipelineSpec

__all__ = ["ROOM_GRAIN", "Stage", "own_stages", "stages_of", "whole_model"]

ROOM_GRAIN: Final = 64
"""Tokens: what goes from stage to stage is filled up to multiples, so that few micro-batches want new buffers."""


@dataclass(frozen=True)
class Stage:
    """A part of a model.

    Attributes:
        layers: of the model.
        first: whether ids come in here.
        last: whether logits go out here.
    """

    layers: range
    first: bool = True
    last: bool = True

    def holds(self, name: str, tied: bool) -> bool:
        """Whether a parameter of that name stands here; a tied embedding matrix does in the first and the last."""
        head, _, rest = name.partition(".")
        if head == "layers":
            return int(rest.partition(".")[0]) in self.layers
        if head in ("embed_tokens", "positions"):
            return self.first or (self.last and tied and head == "embed_tokens")
        return self.last


def whole_model(num_layers: int) -> Stage:
    """All of it."""
    return Stage(range(num_layers))


@lru_cache(maxsize=64)
def stages_of(spec: DecoderSpec, stages: int) -> tuple[Stage, ...]:
    """What each stage holds of a model.

    Raises:
        UserError: there are more stages than layers.
    """
    if stages > spec.num_layers:
        what = f"{stages} stages, and the model has {spec.num_layers} layers"
        raise UserError(what, where="pp", mend="take fewer ranks or chunks")
    cut = enumerate(layers_of_stages(spec, stages))
    return tuple(Stage(layers, number == 0, number == stages - 1) for number, layers in cut)


def own_stages(pipeline: PipelineSpec, rank: int) -> tuple[int, ...]:
    """The numbers of a rank's stages, in the order in which a forward meets them.

    Two chunks of the schedules in the form of a V (ZBV, DualPipeV) go down and up again, so that the first rank has the
    first and the last stage; chunks of the others go round.
    """
    if pipeline.schedule in ("zbv_zero_bubble", "dual_pipe_v"):
        return rank, 2 * pipeline.ranks - 1 - rank
    return tuple(rank + pipeline.ranks * chunk for chunk in range(pipeline.chunks_a_rank))
