"""From any spec to its module."""

from intaglio.models.decoder import Decoder
from intaglio.models.encoder_decoder import EncoderDecoder
from intaglio.models.recurrent import RecurrentModel
from intaglio.models.seq2seq import Seq2Seq
from intaglio.specs import DecoderSpec, EncoderDecoderSpec, ModelSpec, RecurrentSpec, Seq2SeqSpec

__all__ = ["build_model"]


def build_model(spec: ModelSpec) -> Decoder | EncoderDecoder | RecurrentModel | Seq2Seq:
    """The language model that `spec` describes, its weights as torch leaves them (see `models.init`).

    Raises:
        UserError: a spec that no language model can have.
    """
    match spec:
        case DecoderSpec():
            return Decoder(spec)
        case EncoderDecoderSpec():
            return EncoderDecoder(spec)
        case RecurrentSpec():
            return RecurrentModel(spec)
        case Seq2SeqSpec():
            return Seq2Seq(spec)
