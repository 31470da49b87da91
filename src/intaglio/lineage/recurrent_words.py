"""Parts of recurrent models and encoder-decoders in a few words, and small pictures of what they do.

A cell's is what happens to its state, an encoder-decoder's how the source comes to the target.
"""

from intaglio.lineage.decoder_words import output_in_words
from intaglio.specs import CellSpec, GRUCellSpec, LSTMCellSpec, RecurrentSpec, RNNCellSpec, Seq2SeqSpec

__all__ = ["cell_picture", "embeddings_in_words", "handover_picture", "layers_in_words", "parts_in_words"]

SCORES = {"additive": "v tanh(W h + U m)", "dot": "h m", "general": "h W m"}


def parts_in_words(spec: RecurrentSpec | Seq2SeqSpec) -> list[str]:
    """What a layer is made of, such as GRU, reset before the product."""
    if isinstance(spec, RecurrentSpec):
        return _side_in_words(spec.cell, spec.bidirectional)
    words = ["encoder-decoder", _side_in_words(spec.cell, False)[0]]
    words += ["source both ways"] if spec.bidirectional else []
    look = spec.attention
    return [*words, f"{look.score} attention {look.fusion} the cell" if look else "no attention"]


def _side_in_words(cell: CellSpec, bidirectional: bool) -> list[str]:
    match cell:
        case RNNCellSpec(activation=activation):
            words = ["RNN", activation]
        case LSTMCellSpec():
            words = ["LSTM", "three gates and a cell state"]
        case GRUCellSpec(reset=reset):
            words = ["GRU", "two gates", f"reset {reset} the product"]
    return [*words, "in both directions"] if bidirectional else words


def embeddings_in_words(spec: RecurrentSpec | Seq2SeqSpec) -> str:
    """Vocabulary, width and the output matrix."""
    size = f"{spec.vocab_size:,} tokens, {spec.embedding_size:,} wide"
    return f"{size}, of any length, {output_in_words(isinstance(spec, RecurrentSpec) and spec.tie_embeddings)}"


def layers_in_words(spec: RecurrentSpec | Seq2SeqSpec) -> list[tuple[str, str]]:
    """(how many, what), the encoder's and then the decoder's where there are two."""
    if isinstance(spec, RecurrentSpec):
        return [_layers(spec.num_layers, spec, spec.bidirectional)]
    encoder = _layers(spec.encoder_layers, spec, spec.bidirectional)
    return [("", "encoder:"), encoder, ("", "decoder:"), _layers(spec.decoder_layers, spec, False)]


def _layers(count: int, spec: RecurrentSpec | Seq2SeqSpec, bidirectional: bool) -> tuple[str, str]:
    dropout = f", dropout {spec.dropout:g}" if spec.dropout else ""
    words = ", ".join(_side_in_words(spec.cell, bidirectional))
    return f"{count} x", f"{words}; {spec.hidden_size:,} wide{dropout}"


def cell_picture(cell: CellSpec) -> str:
    """What happens to the state on its way from one step to the next."""
    match cell:
        case RNNCellSpec(activation=activation):
            return f"h ─ U ─ + W x ─ {activation} ─▶ h"
        case LSTMCellSpec():
            return "c ─ * forget ─ + input * candidate ─┬──────────────────▶ c\n" + " " * 36 + "└ tanh ─ * output ─▶ h"
        case GRUCellSpec(reset="before"):
            candidate = "tanh(W x + U (reset * h))"
        case GRUCellSpec():
            candidate = "tanh(W x + reset * (U h))"
    return f"h ─ * update ─ + (1 - update) * candidate ─▶ h\ncandidate = {candidate}"


def handover_picture(spec: Seq2SeqSpec) -> str:
    """How the source comes to the target: by a state alone, or by a look back at every step."""
    if spec.attention is None:
        return "source ─ encoder ─▶ last state ─ decoder ─▶ target"
    steps = f"score {SCORES[spec.attention.score]} ─ weights ─ context"
    if spec.attention.fusion == "after":
        return f"h ─┬─{'─' * len(steps)}───┬─ both ─▶ next token\n   └─ {steps} ─┘"
    return f"h before ─ {steps} ─┐\ntoken ─────{'─' * len(steps)}──┴─ both ─ cell ─▶ h ─▶ next token"
