"""Any model of ours, told apart by `kind`."""

from typing import Annotated, Any, get_args

from pydantic import Discriminator, Tag

from intaglio.errors import UserError, nearest
from intaglio.specs.base import kind_or, validate
from intaglio.specs.decoder import DecoderSpec
from intaglio.specs.encoder_decoder import EncoderDecoderSpec
from intaglio.specs.recurrent import RecurrentSpec
from intaglio.specs.seq2seq import Seq2SeqSpec

__all__ = ["ModelSpec", "validate_model"]

ModelSpec = Annotated[
    Annotated[DecoderSpec, Tag("decoder")]
    | Annotated[EncoderDecoderSpec, Tag("encoder_decoder")]
    | Annotated[RecurrentSpec, Tag("recurrent")]
    | Annotated[Seq2SeqSpec, Tag("seq2seq")],
    Discriminator(kind_or("decoder")),
]
"""A decoder where no `kind` is given."""

_KINDS = {get_args(one)[1].tag: get_args(one)[0] for one in get_args(get_args(ModelSpec)[0])}


def validate_model(data: Any, where: str = "spec") -> ModelSpec:
    """`data` as the spec that its `kind` names.

    Raises:
        UserError: an unknown kind, or the first thing wrong, with its key; names the nearest known one.
    """
    kind = kind_or("decoder")(data)
    if kind not in _KINDS:
        raise UserError(f"unknown kind {kind!r}", where=where, mend=nearest(kind, _KINDS))
    spec: ModelSpec = validate(_KINDS[kind], data, where)  # not the union: its errors would name the tag as a key
    return spec
