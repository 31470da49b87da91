"""Recurrent models: embeddings and recurrent layers, with an output matrix where they are a language model.

Legend: B batch, T tokens, E features of an embedding, H hidden features, D directions, V vocabulary.
"""

from torch import Tensor, nn

from intaglio.errors import UserError
from intaglio.parts.recurrent import Recurrent, State
from intaglio.specs import RecurrentSpec

__all__ = ["RecurrentEncoder", "RecurrentModel"]


class RecurrentEncoder(nn.Module):
    """What a `RecurrentSpec` says, up to the output matrix: what taggers and classifiers stand on."""

    def __init__(self, spec: RecurrentSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embed_tokens = nn.Embedding(spec.vocab_size, spec.embedding_size)
        self.recurrent = Recurrent(
            spec.cell, spec.embedding_size, spec.hidden_size, spec.num_layers, spec.bidirectional, spec.dropout
        )

    @property
    def output_size(self) -> int:
        """H * D"""
        return self.spec.output_size

    def hidden_states(
        self, ids: Tensor, state: State | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """What is known at every token, and behind the last.

        Args:
            ids: (B, T), padded on the right with any id where rows differ in length.
            state: carried over from the tokens before; None starts from zeros (see `Recurrent.forward`).
            lengths: (B,); None: every row is full.

        Returns:
            (B, T, H * D), 0 behind a row's end, and the state.
        """
        outputs, after = self.recurrent(self.embed_tokens(ids), state, lengths)
        return outputs, after

    def summary(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """What the last layer knows when it has read a row, in each direction: (B, H * D)."""
        _, state = self.hidden_states(ids, lengths=lengths)
        return state[0][-self.spec.directions :].transpose(0, 1).flatten(1)


class RecurrentModel(RecurrentEncoder):
    """A language model: the next token from all before it, in memory that does not grow.

    Raises:
        UserError: a bidirectional spec, which would see the token that it is asked for.
    """

    def __init__(self, spec: RecurrentSpec) -> None:
        if spec.bidirectional:
            raise UserError("a language model cannot be bidirectional", mend="use it under a tagger or a classifier")
        super().__init__(spec)
        self.lm_head = nn.Linear(spec.output_size, spec.vocab_size, bias=False)
        self.tie_weights()

    def tie_weights(self) -> None:
        """Makes the output matrix the embedding matrix, where the spec says so; again after weights are replaced."""
        if self.spec.tie_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the next token at every place: (B, T) -> (B, T, V)."""
        hidden, _ = self.hidden_states(ids)
        return self.logits(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., H) -> (..., V)"""
        logits: Tensor = self.lm_head(hidden)
        return logits
