"""The encoder-decoder Transformer: a source is read once and whole, a target is predicted token by token.

Padding costs nothing and cannot leak: where rows differ in length their tokens are laid end to end, every layer works
on real tokens alone, and attention goes row by row. Rows of one length run as the batch they are.

Legend: B pairs, S source tokens, T target tokens, M target tokens of all rows end to end, E features, V vocabulary.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio.errors import UserError
from intaglio.models.stack import Stack
from intaglio.parts.block import CrossBlock
from intaglio.parts.context import AttentionContext, Causal, Packed, PackedWhole, Whole
from intaglio.parts.memory import CrossContext, EndToEnd, Equal, Memory, lay_end_to_end, pad_rows
from intaglio.specs import EncoderDecoderSpec

__all__ = ["EncoderDecoder"]


class EncoderDecoder(nn.Module):
    """See `EncoderDecoderSpec`."""

    def __init__(self, spec: EncoderDecoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.encoder = Stack(spec, spec.encoder.blocks, spec.encoder.final_norm, dropout=spec.dropout)
        self.decoder = Stack(spec, spec.decoder.blocks, spec.decoder.final_norm, CrossBlock, spec.dropout)
        self.lm_head = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)
        self.logits_bias: Tensor | None
        self.register_buffer("logits_bias", torch.zeros(1, spec.vocab_size) if spec.logits_bias else None)
        self.tie_weights()

    def tie_weights(self) -> None:
        """Makes the three matrices one, where the spec says so; again after weights are replaced."""
        if self.spec.tie_embeddings:
            self.decoder.embed_tokens.weight = self.lm_head.weight = self.encoder.embed_tokens.weight

    def forward(
        self,
        source: Tensor,
        target_in: Tensor,
        source_lengths: Sequence[int] | Tensor | None = None,
        target_lengths: Sequence[int] | Tensor | None = None,
    ) -> Tensor:
        """Logits of every next token of the targets, all at once: see `encode` and `decode`."""
        return self.decode(target_in, self.encode(source, source_lengths), target_lengths)

    def encode(self, source: Tensor, lengths: Sequence[int] | Tensor | None = None) -> Memory:
        """Reads the sources.

        Args:
            source: (B, S), padding on the right; whatever stands there makes no difference.
            lengths: (B,), the real tokens of each row; None: all of them. A row without any is read as nothing.

        Raises:
            UserError: more tokens than the model has positions.
        """
        rows = self._lengths(source, lengths, "source")
        if len(set(rows)) > 1:
            return self.encode_packed(lay_end_to_end(source, rows), rows)
        states = self.encoder.run(source[:, : rows[0]], _counted(rows, source.device), Whole())
        return Memory(states.flatten(0, 1)[None], rows)

    def encode_packed(self, source: Tensor, lengths: Sequence[int]) -> Memory:
        """The same for sources that already lie end to end: (1, N), no padding anywhere."""
        states = self.encoder.run(source, _end_to_end(lengths, source.device), PackedWhole(lengths))
        return Memory(states, tuple(lengths))

    def decode(self, target_in: Tensor, memory: Memory, lengths: Sequence[int] | Tensor | None = None) -> Tensor:
        """Logits of the next token at every place of the targets: teacher forcing, all places at once.

        Args:
            target_in: (B, T), the targets behind `spec.start_token_id`, padding on the right.
            memory: of their sources.
            lengths: (B,), the real tokens of each row, the start token counted; None: all of them.

        Returns:
            (B, T, V); what stands at padded places means nothing.

        Raises:
            UserError: more tokens than the model has positions.
        """
        return self.logits(self.hidden_states(target_in, memory, lengths))

    def hidden_states(self, target_in: Tensor, memory: Memory, lengths: Sequence[int] | Tensor | None = None) -> Tensor:
        """The same up to the output matrix: (B, T, E), zeros behind each row."""
        rows = self._lengths(target_in, lengths, "target")
        if memory.equal and len(set(rows)) == 1:
            places = _counted(rows, target_in.device)
            hidden = self.advance(target_in[:, : rows[0]], places, Causal(), Equal(memory))
            return F.pad(hidden, (0, 0, 0, target_in.shape[1] - rows[0]))
        return pad_rows(self.hidden_packed(lay_end_to_end(target_in, rows), memory, rows), rows, target_in.shape[1])

    def hidden_packed(self, target_in: Tensor, memory: Memory, lengths: Sequence[int]) -> Tensor:
        """The same for targets that already lie end to end: (1, M) -> (1, M, E), no padding anywhere."""
        places = _end_to_end(lengths, target_in.device)
        return self.advance(target_in, places, Packed(lengths), EndToEnd(memory, lengths))

    def advance(self, ids: Tensor, positions: Tensor, context: AttentionContext, memory: CrossContext) -> Tensor:
        """The decoder's layers: the one forward that training and cached generation share.

        Args:
            ids: (B, T).
            positions: (B, T).
            context: how the target's keys and values are read and written.
            memory: how the source's are.

        Returns:
            (B, T, E).
        """
        return self.decoder.run(ids, positions, context, memory)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., E) -> (..., V)"""
        logits = self.lm_head(hidden)
        return logits if self.logits_bias is None else logits + self.logits_bias[0]

    def _lengths(self, ids: Tensor, lengths: Sequence[int] | Tensor | None, side: str) -> tuple[int, ...]:
        """Real tokens of each row, as numbers."""
        given = [ids.shape[1]] * len(ids) if lengths is None else torch.as_tensor(lengths).tolist()
        if max(given) > self.spec.context_limit:
            what = f"a {side} of {max(given)} tokens, where the model has {self.spec.context_limit} positions"
            raise UserError(what, mend="shorten it")
        return tuple(given)


def _counted(lengths: Sequence[int], device: torch.device) -> Tensor:
    """(B, T) positions of rows of one length."""
    return torch.arange(lengths[0], device=device).expand(len(lengths), -1)


def _end_to_end(lengths: Sequence[int], device: torch.device) -> Tensor:
    """(1, M) positions of rows end to end: they begin again with each row."""
    return torch.cat([torch.arange(length, device=device) for length in lengths])[None]
