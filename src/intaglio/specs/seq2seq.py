"""Recurrent encoder-decoders: one network reads the source, another writes the target from what the first handed over.

Sutskever et al. 2014, arXiv 1409.3215, and Cho et al. 2014, arXiv 1406.1078; with attention Bahdanau et al. 2014, arXiv
1409.0473, and Luong et al. 2015, arXiv 1508.04025. Arithmetic only.

Legend: V vocabulary, E features of an embedding, H hidden features, M features of an encoder's output (H a direction).
"""

from typing import Literal

from pydantic import Field, model_validator

from intaglio.specs.base import Spec, dtype_bytes
from intaglio.specs.recurrent import CellSpec

__all__ = ["ScoringSpec", "Seq2SeqSpec"]


class ScoringSpec(Spec):
    """How the decoder looks at the source.

    Attributes:
        score: what a place m of the source is worth to a state h of the decoder. `additive`: v tanh(W h + U m)
            (Bahdanau); `dot`: h m; `general`: h W m (both Luong).
        fusion: what becomes of the context. `after` the cell: it stands beside the state that asked for it, and the
            output matrix reads both. `before` the cell: asked for by the state before, it enters the cell beside the
            token (Bahdanau).
    """

    score: Literal["additive", "dot", "general"]
    fusion: Literal["after", "before"] = "after"

    def key_weights(self, hidden_size: int, memory_size: int) -> int:
        """Weights that multiply every token of the source."""
        return 0 if self.score == "dot" else hidden_size * memory_size

    def query_weights(self, hidden_size: int) -> int:
        """Weights that multiply every token of the target."""
        return hidden_size**2 if self.score == "additive" else 0

    def num_parameters(self, hidden_size: int, memory_size: int) -> int:
        """Its matrices, and the vector v where there is one."""
        vector = hidden_size if self.score == "additive" else 0
        return self.key_weights(hidden_size, memory_size) + self.query_weights(hidden_size) + vector

    def kept(self, hidden_size: int, memory_size: int) -> int:
        """Numbers kept for each token of the source: its state, and what of it is scored where that is another."""
        return memory_size + (0 if self.score == "dot" else hidden_size)


class Seq2SeqSpec(Spec):
    """An encoder and a decoder of one kind of cell and one vocabulary, all their weights apart.

    Each layer of the decoder starts from the state that the encoder's layer as far from the top ended in; a deeper
    decoder's lowest layers all start from the encoder's lowest. Where the encoder reads in both directions a linear
    bridge leads from its 2 H features to the decoder's H, one for each layer and each vector of the state.

    Attributes:
        bidirectional: each layer of the encoder also reads from the end.
        dropout: share of features dropped in training: of embeddings, between layers, and before the output matrix
            (Zaremba et al. 2014, arXiv 1409.2329, figure 2).
        attention: None: the decoder knows of the source only the state that it starts from.
        start_token_id: what stands before the first token of a target.
    """

    kind: Literal["seq2seq"] = "seq2seq"
    vocab_size: int = Field(gt=0)
    embedding_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    cell: CellSpec
    encoder_layers: int = Field(1, gt=0, le=1_000)
    decoder_layers: int = Field(1, gt=0, le=1_000)
    bidirectional: bool = False
    dropout: float = Field(0.0, ge=0, lt=1)
    attention: ScoringSpec | None = None
    start_token_id: int = Field(ge=0)

    @model_validator(mode="after")
    def _fits(self) -> "Seq2SeqSpec":
        if self.start_token_id >= self.vocab_size:
            raise ValueError(f"start_token_id {self.start_token_id} is beyond the vocabulary of {self.vocab_size}")
        if self.bidirectional and self.attention and self.attention.score == "dot":
            raise ValueError("score dot needs states of equal sizes, and a bidirectional encoder's are twice as wide")
        return self

    @property
    def num_layers(self) -> int:
        """Of both sides."""
        return self.encoder_layers + self.decoder_layers

    @property
    def context_limit(self) -> None:
        """None: sources and targets may be as long as they like."""
        return None

    @property
    def memory_size(self) -> int:
        """M"""
        return self.hidden_size * (2 if self.bidirectional else 1)

    @property
    def decoder_input_size(self) -> int:
        """Features that the decoder's first layer reads."""
        return self.embedding_size + (self.memory_size if self._fuses("before") else 0)

    @property
    def output_size(self) -> int:
        """Features that the output matrix reads."""
        return self.hidden_size + (self.memory_size if self._fuses("after") else 0)

    def num_parameters(self) -> int:
        """Parameters of the built model."""
        size = self.hidden_size
        around = self.vocab_size * (2 * self.embedding_size + self.output_size)
        inputs = self._encoder_inputs() + self._decoder_inputs()
        cells = sum(self.cell.num_parameters(input_size, size) for input_size in inputs)
        attention = self.attention.num_parameters(size, self.memory_size) if self.attention else 0
        bridges = self.decoder_layers * self.cell.states if self.bidirectional else 0
        return around + cells + attention + bridges * size * (self.memory_size + 1)

    def num_active_parameters(self) -> int:
        """The same: a token of the source and one of the target meet every weight together."""
        return self.num_parameters()

    def flops_per_token(self, context: int) -> int:
        """Forward FLOPs of one token of the source and one of the target, `context` tokens each.

        Matrix products only; the bridge, which a pair crosses once, is left out.
        """
        size, memory = self.hidden_size, self.memory_size
        inputs = self._encoder_inputs() + self._decoder_inputs()
        weights = sum(self.cell.matmul_weights(input_size, size) for input_size in inputs)
        weights += self.vocab_size * self.output_size
        if self.attention:
            weights += self.attention.key_weights(size, memory) + self.attention.query_weights(size)
            weights += context * (size + memory)  # the scores, and the weighted sum
        return 2 * weights

    def kv_bytes_per_token(self, dtype: str = "bfloat16") -> int:
        """0: a token of the target adds nothing to what is kept."""
        return 0 * dtype_bytes(dtype)

    def kv_cache_bytes(self, context: int, dtype: str = "bfloat16") -> int:
        """Bytes kept for one pair: the decoder's state, and with attention a source of `context` tokens."""
        source = context * self.attention.kept(self.hidden_size, self.memory_size) if self.attention else 0
        return self.state_bytes(dtype) + source * dtype_bytes(dtype)

    def state_bytes(self, dtype: str = "bfloat16") -> int:
        """Bytes of the decoder's state of one pair."""
        return self.decoder_layers * self.cell.states * self.hidden_size * dtype_bytes(dtype)

    def _fuses(self, where: str) -> bool:
        return self.attention is not None and self.attention.fusion == where

    def _encoder_inputs(self) -> list[int]:
        """Input features of each of the encoder's cells."""
        below = [self.embedding_size] + [self.memory_size] * (self.encoder_layers - 1)
        return [size for size in below for _ in range(self.memory_size // self.hidden_size)]

    def _decoder_inputs(self) -> list[int]:
        """Input features of each of the decoder's cells."""
        return [self.decoder_input_size] + [self.hidden_size] * (self.decoder_layers - 1)
