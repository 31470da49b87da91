"""Any model's parts in a few words, and what one of its layers does as a small picture: chosen by its kind."""

from intaglio.lineage import decoder_words, recurrent_words
from intaglio.specs import DecoderSpec, EncoderDecoderSpec, ModelSpec, RecurrentSpec, Seq2SeqSpec, StackSpec

__all__ = ["embeddings_in_words", "layers_in_words", "parts_in_words", "picture"]


def parts_in_words(spec: ModelSpec) -> list[str]:
    """What a typical layer is made of, such as post-LayerNorm, learned, GELU, MHA 12."""
    match spec:
        case DecoderSpec():
            return decoder_words.parts_in_words(spec)
        case EncoderDecoderSpec():
            return ["encoder-decoder", *decoder_words.parts_in_words(_side(spec, spec.decoder))]
        case RecurrentSpec() | Seq2SeqSpec():
            return recurrent_words.parts_in_words(spec)


def embeddings_in_words(spec: ModelSpec) -> str:
    """Vocabulary, width, positions and the output matrix."""
    match spec:
        case DecoderSpec():
            return decoder_words.embeddings_in_words(spec)
        case EncoderDecoderSpec():
            return decoder_words.embeddings_in_words(_side(spec, spec.encoder))
        case RecurrentSpec() | Seq2SeqSpec():
            return recurrent_words.embeddings_in_words(spec)


def layers_in_words(spec: ModelSpec) -> list[tuple[str, str]]:
    """(how many, what) for each kind of layer in a row."""
    match spec:
        case DecoderSpec():
            return decoder_words.layers_in_words(spec)
        case EncoderDecoderSpec():
            sides = {"encoder": spec.encoder, "decoder, and attention to the source": spec.decoder}
            rows = {name: decoder_words.layers_in_words(_side(spec, side)) for name, side in sides.items()}
            return [row for name, of_side in rows.items() for row in (("", f"{name}:"), *of_side)]
        case RecurrentSpec() | Seq2SeqSpec():
            return recurrent_words.layers_in_words(spec)


def picture(spec: ModelSpec) -> str:
    """The layer that comes most often, the cell, or what passes from source to target."""
    match spec:
        case DecoderSpec():
            return decoder_words.layer_picture(decoder_words.typical_block(spec))
        case EncoderDecoderSpec():
            return picture(_side(spec, spec.encoder))
        case RecurrentSpec():
            return recurrent_words.cell_picture(spec.cell)
        case Seq2SeqSpec():
            return recurrent_words.handover_picture(spec)


def _side(spec: EncoderDecoderSpec, stack: StackSpec) -> DecoderSpec:
    """One side by itself: of the same parts as a decoder."""
    return DecoderSpec(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        max_position_embeddings=spec.max_position_embeddings,
        positions=spec.positions,
        embedding_scale=spec.embedding_scale,
        layers=stack.layers,
        final_norm=stack.final_norm,
        tie_embeddings=spec.tie_embeddings,
    )
