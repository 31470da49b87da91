"""Tiny recurrent encoder-decoders, one for each thing their spec can say, and ragged pairs to feed them."""

from typing import Any

import torch

from intaglio.models.seq2seq import Seq2Seq
from intaglio.specs import CellSpec, ScoringSpec, Seq2SeqSpec
from torch_recurrent import CELLS

__all__ = ["SCORINGS", "SOURCES", "TARGETS", "ZOO", "random_seq2seq", "seq2seq_spec"]

VOCAB = 13
SOURCES = [[7, 3, 11, 5, 2], [4, 5, 6, 7, 8, 9, 10, 11, 12, 2], [5, 2], [9, 9, 10, 4, 12, 3, 2]]
TARGETS = [[1, 8, 3, 11], [1], [1, 10, 11, 12, 3, 4, 5, 6], [1, 9, 7]]
"""Each begins with the start token."""

SCORINGS: dict[str, ScoringSpec | None] = {
    "no attention": None,
    **{
        f"{score}, {fusion}": ScoringSpec.model_validate({"score": score, "fusion": fusion})
        for score in ("additive", "dot", "general")
        for fusion in ("after", "before")
    },
}


def seq2seq_spec(cell: CellSpec, attention: ScoringSpec | None = None, **fields: Any) -> Seq2SeqSpec:
    """Two layers a side, or what is said otherwise."""
    sizes = {"vocab_size": VOCAB, "embedding_size": 6, "hidden_size": 8, "encoder_layers": 2, "decoder_layers": 2}
    return Seq2SeqSpec.model_validate({**sizes, "start_token_id": 1, "cell": cell, "attention": attention, **fields})


def random_seq2seq(spec: Seq2SeqSpec, std: float = 0.4) -> Seq2Seq:
    """In float64, every parameter random, biases too; not training."""
    torch.manual_seed(7)
    model = Seq2Seq(spec).double().eval()
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * std
    return model


_LSTM, _GRU = CELLS["lstm"], CELLS["gru, reset before"]

ZOO = {
    **{f"{name}, {scoring}": seq2seq_spec(CELLS[name], one) for name in CELLS for scoring, one in SCORINGS.items()},
    "both ways": seq2seq_spec(_GRU, bidirectional=True),
    "both ways, lstm": seq2seq_spec(_LSTM, SCORINGS["additive, after"], bidirectional=True),
    "both ways, input feeding": seq2seq_spec(_GRU, SCORINGS["additive, before"], bidirectional=True),
    "both ways, general": seq2seq_spec(_GRU, SCORINGS["general, after"], bidirectional=True),
    "deeper encoder": seq2seq_spec(_LSTM, SCORINGS["dot, after"], encoder_layers=3, decoder_layers=1),
    "deeper decoder": seq2seq_spec(_LSTM, encoder_layers=1, decoder_layers=3, bidirectional=True),
    "dropout": seq2seq_spec(_GRU, SCORINGS["dot, before"], dropout=0.3),
}
