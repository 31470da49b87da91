"""Recurrent models: one cell used at every step, its state all that a step knows of the steps before. Arithmetic only.

Legend: I input features of a layer, H hidden features, G sets of weights in a cell.

A set is a matrix on the input (H, I), one on the state (H, H) and a bias (H); a plain cell has one, a GRU three, an
LSTM four. The bias is one a set: torch.nn has two that are only ever added.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from intaglio.specs.base import Spec, dtype_bytes

__all__ = ["CellSpec", "GRUCellSpec", "LSTMCellSpec", "RNNCellSpec", "RecurrentSpec"]


class _Cell(Spec):
    sets: ClassVar[int]
    """G"""
    states: ClassVar[int] = 1
    """Vectors of H features that a step hands to the next."""

    def matmul_weights(self, input_size: int, hidden_size: int) -> int:
        """Weights that multiply every token."""
        return self.sets * hidden_size * (input_size + hidden_size)

    def num_parameters(self, input_size: int, hidden_size: int) -> int:
        """Weights and biases of one cell."""
        return self.matmul_weights(input_size, hidden_size) + self.sets * hidden_size


class RNNCellSpec(_Cell):
    """h_t = f(W x_t + U h_{t-1} + b) (Elman 1990).

    Attributes:
        activation: f.
    """

    sets = 1
    kind: Literal["rnn"] = "rnn"
    activation: Literal["tanh", "relu"] = "tanh"


class LSTMCellSpec(_Cell):
    """A cell state beside the hidden one, changed only by a product and a sum (Hochreiter and Schmidhuber 1997).

    f, i, o = sigmoid(W x_t + U h_{t-1} + b) each, the candidate c~ = tanh(the same); c_t = f * c_{t-1} + i * c~;
    h_t = o * tanh(c_t). The forget gate f is Gers et al.'s (2000).
    """

    sets = 4
    states = 2
    kind: Literal["lstm"] = "lstm"


class GRUCellSpec(_Cell):
    """Two gates and no cell state (Cho et al. 2014, arXiv 1406.1078, equations 5 to 8).

    z, r = sigmoid(W x_t + U h_{t-1} + b) each; h_t = z * h_{t-1} + (1 - z) * h~. An update gate z of 1 keeps the old.

    Attributes:
        reset: where the reset gate r stands. `before` the product (the paper): h~ = tanh(W x_t + U (r * h_{t-1}) + b);
            `after` it (torch.nn and cuDNN): h~ = tanh(W x_t + b + r * (U h_{t-1} + b')), with one bias more.
    """

    sets = 3
    kind: Literal["gru"] = "gru"
    reset: Literal["before", "after"] = "before"

    def num_parameters(self, input_size: int, hidden_size: int) -> int:
        """Weights and biases of one cell."""
        inner = hidden_size if self.reset == "after" else 0
        return super().num_parameters(input_size, hidden_size) + inner


CellSpec = Annotated[RNNCellSpec | LSTMCellSpec | GRUCellSpec, Field(discriminator="kind")]


class RecurrentSpec(Spec):
    """Embeddings, recurrent layers and an output matrix.

    Attributes:
        bidirectional: each layer also reads from the end, with weights of its own; no language model can.
        dropout: share of features dropped between layers, in training.
        tie_embeddings: the output matrix is the embedding matrix.
    """

    kind: Literal["recurrent"] = "recurrent"
    vocab_size: int = Field(gt=0)
    embedding_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    cell: CellSpec
    num_layers: int = Field(1, gt=0, le=1_000)
    bidirectional: bool = False
    dropout: float = Field(0.0, ge=0, lt=1)
    tie_embeddings: bool = False

    @model_validator(mode="after")
    def _fits(self) -> "RecurrentSpec":
        if self.tie_embeddings and self.embedding_size != self.output_size:
            sizes = f"embedding_size {self.embedding_size} and {self.output_size} output features"
            raise ValueError(f"tie_embeddings needs equal sizes, not {sizes}")
        if self.dropout and self.num_layers == 1:
            raise ValueError("dropout stands between layers, and there is one layer")
        return self

    @property
    def directions(self) -> int:
        """Cells of a layer."""
        return 2 if self.bidirectional else 1

    @property
    def output_size(self) -> int:
        """Features of each token behind the last layer."""
        return self.hidden_size * self.directions

    @property
    def context_limit(self) -> None:
        """None: a sequence may be as long as it likes."""
        return None

    def num_parameters(self) -> int:
        """Parameters of the built model; tied embeddings count once."""
        outputs = 0 if self.tie_embeddings else self.vocab_size * self.output_size
        cells = sum(self.cell.num_parameters(size, self.hidden_size) for size in self._input_sizes())
        return self.vocab_size * self.embedding_size + outputs + cells

    def num_active_parameters(self) -> int:
        """The same: every token meets every weight."""
        return self.num_parameters()

    def flops_per_token(self, context: int) -> int:
        """Forward FLOPs of one token, whatever the context; matrix products only."""
        weights = sum(self.cell.matmul_weights(size, self.hidden_size) for size in self._input_sizes())
        return 2 * (weights + self.vocab_size * self.output_size)

    def kv_bytes_per_token(self, dtype: str = "bfloat16") -> int:
        """0: a token adds nothing to what is kept."""
        return 0 * dtype_bytes(dtype)

    def kv_cache_bytes(self, context: int, dtype: str = "bfloat16") -> int:
        """Bytes kept for one sequence, however long: its state."""
        return self.state_bytes(dtype)

    def state_bytes(self, dtype: str = "bfloat16") -> int:
        """Bytes of the state of one sequence."""
        cells = self.num_layers * self.directions
        return cells * self.cell.states * self.hidden_size * dtype_bytes(dtype)

    def _input_sizes(self) -> list[int]:
        """I of every cell."""
        below = [self.embedding_size] + [self.output_size] * (self.num_layers - 1)
        return [size for size in below for _ in range(self.directions)]
