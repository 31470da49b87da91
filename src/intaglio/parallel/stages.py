"""A model cut into stages: modules that hold some of its layers, under the names that these have in the whole.

So a checkpoint, an optimizer's groups and an adapter's files are keyed as ever. The first stage has the embeddings, the
last the final norm, the output matrix and a head. Where the embeddings are tied, first and last have the matrix each:
one parameter where both stand on one rank, equal copies where they do not (see `tied.TiedCopies`).

Legend: n tokens of a packed batch that are on this rank, E features.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor, nn

from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier, decoder_of
from intaglio.parts.position import Rotaries
from intaglio.planning.stages import Stage, stages_of

__all__ = ["DecoderStage", "Layers", "rank_module", "split"]


class Layers(nn.ModuleList):
    """Some layers of a model, under the numbers that they have in it.

    Args:
        layers: by those numbers.
    """

    def __init__(self, layers: Mapping[int, nn.Module]) -> None:
        super().__init__()
        for number, layer in layers.items():
            self.add_module(str(number), layer)


class DecoderStage(Decoder):
    """Some layers of a decoder, which go on from what the stage before has made of the batch.

    The modules are the whole model's own. To an objective the last stage is the decoder: its hidden states are those of
    the whole, if `arrived` holds what the stages before it have made.

    Args:
        whole: the model.
        layers: their numbers.
        first: whether it has the embeddings.
        last: whether it has the final norm and the output matrix.

    Attributes:
        arrived: (1, n, E), of the stage before; taken by the next forward. The first stage needs none.
    """

    def __init__(self, whole: Decoder, layers: Iterable[int], *, first: bool, last: bool) -> None:
        nn.Module.__init__(self)
        numbers = list(layers)
        self.spec, self.scale, self.first, self.last = whole.spec, whole.scale, first, last
        self.adapter_specs = getattr(whole, "adapter_specs", {})
        tied_copy = last and whole.spec.tie_embeddings
        self.embed_tokens = whole.embed_tokens if first or tied_copy else nn.Module()  # type: ignore[assignment]
        self.positions = whole.positions if first else None
        self.layers = Layers({number: whole.layers[number] for number in numbers})
        self.norm = whole.norm if last else nn.Identity()
        self.lm_head = whole.lm_head if last else nn.Module()  # type: ignore[assignment]
        self.dropout = whole.dropout
        self._rotaries = Rotaries([whole.spec.blocks[number].attention for number in numbers])
        self.arrived: Tensor | None = None
        self.train(whole.training)

    def tie_weights(self) -> None:
        """See `Decoder.tie_weights`; a stage without the output matrix has nothing to tie."""
        if self.last:
            super().tie_weights()

    def _embed(self, ids: Tensor, places: Tensor) -> Tensor:
        if self.first:
            return super()._embed(ids, places)
        hidden, self.arrived = self.arrived, None
        assert hidden is not None, "a stage reads a batch once, after something has arrived"
        return hidden


def split(model: Decoder | SequenceClassifier, stages: int) -> list[nn.Module]:
    """The stages of a model, balanced by what they compute; the modules are the model's own.

    Args:
        model: a decoder, or one under a head, with or without adapters.
        stages: how many.

    Raises:
        UserError: there are fewer layers than stages, or an adapter changes a tied embedding matrix.
    """
    decoder = decoder_of(model)
    _require_plain_ties(decoder)
    return [_part(model, [stage]) for stage in stages_of(decoder.spec, stages)]


def rank_module(model: Decoder | SequenceClassifier, stages: int, own: Sequence[int]) -> nn.Module:
    """What a rank holds, its stages `own` of so many, as one module: the whole model without the others' parts.

    Its parameters are the very ones of those stages, and go by the whole model's names; it computes nothing.
    """
    cut = stages_of(decoder_of(model).spec, stages)
    return _part(model, [cut[number] for number in own])


def _part(model: Decoder | SequenceClassifier, stages: Sequence[Stage]) -> nn.Module:
    first, last = any(stage.first for stage in stages), any(stage.last for stage in stages)
    numbers = [number for stage in stages for number in stage.layers]
    decoder = DecoderStage(decoder_of(model), numbers, first=first, last=last)
    if isinstance(model, Decoder):
        return decoder
    headed = copy.copy(model)
    headed._modules = {**model._modules, "decoder": decoder, "score": model.score if last else nn.Module()}
    return headed


def _require_plain_ties(decoder: Decoder) -> None:
    """A change to a tied matrix would have to be the same change on two ranks."""
    plain = type(decoder.embed_tokens) is nn.Embedding and type(decoder.lm_head) is nn.Linear
    if decoder.spec.tie_embeddings and not plain:
        raise UserError(
            "an adapter changes the embedding matrix, which the first and the last stage share",
            where="parallel.pp",
            mend="leave embed_tokens and lm_head out of the adapter, or take pp: 1",
        )
