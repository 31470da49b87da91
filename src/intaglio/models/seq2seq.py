"""Seq2Seq: a recurrent encoder reads the source, a recurrent decoder writes the target, with or without attention.

Training knows the target, so the decoder is given its true tokens (teacher forcing) and, where attention fuses behind
the cell, its recurrence runs over all steps on the fast path and every step's look at the source is one product. Input
feeding and scheduled sampling need what the step before came to, and go one `step` at a time, as generation does.

Legend: B pairs, S source tokens, T target tokens, H hidden features, M features of an encoder's output, F features that
the output matrix reads, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio.parts.recurrent import Recurrent, State
from intaglio.parts.scoring import Attention, Looked
from intaglio.specs import Seq2SeqSpec

__all__ = ["Handed", "Seq2Seq"]

Lengths = Sequence[int] | Tensor | None


@dataclass(frozen=True)
class Handed:
    """What the encoder hands to the decoder.

    Attributes:
        state: what the decoder starts from, (layers, B, H) each.
        looked: what it may look back at; None without attention.
    """

    state: State
    looked: Looked | None

    def take(self, rows: Tensor) -> "Handed":
        """Row i becomes what row `rows[i]` was; a row may be taken more than once."""
        return Handed(tuple(part[:, rows] for part in self.state), self.looked and self.looked.take(rows))


class Seq2Seq(nn.Module):
    """See `Seq2SeqSpec`."""

    def __init__(self, spec: Seq2SeqSpec) -> None:
        super().__init__()
        self.spec = spec
        size, wide = spec.hidden_size, spec.memory_size
        self.embed_source = nn.Embedding(spec.vocab_size, spec.embedding_size)
        self.embed_target = nn.Embedding(spec.vocab_size, spec.embedding_size)
        self.encoder = Recurrent(
            spec.cell, spec.embedding_size, size, spec.encoder_layers, spec.bidirectional, spec.dropout
        )
        self.bridges = nn.ModuleList(  # a layer's: one for each vector of its state
            nn.ModuleList(nn.Linear(wide, size) if spec.bidirectional else nn.Identity() for _ in range(parts))
            for parts in [spec.cell.states] * spec.decoder_layers
        )
        self.decoder = Recurrent(
            spec.cell, spec.decoder_input_size, size, spec.decoder_layers, bidirectional=False, dropout=spec.dropout
        )
        self.attention = Attention(spec.attention, size, wide) if spec.attention else None
        self.fuses_before = spec.attention is not None and spec.attention.fusion == "before"
        self.lm_head = nn.Linear(spec.output_size, spec.vocab_size, bias=False)

    def forward(
        self,
        source: Tensor,
        target_in: Tensor,
        source_lengths: Lengths = None,
        target_lengths: Lengths = None,
    ) -> Tensor:
        """Logits of every next token of the targets: see `encode` and `decode`."""
        return self.decode(target_in, self.encode(source, source_lengths), target_lengths)

    def encode(self, source: Tensor, lengths: Lengths = None) -> Handed:
        """Reads the sources.

        Args:
            source: (B, S), padding on the right; whatever stands there makes no difference.
            lengths: (B,), the real tokens of each row; None: all of them. A row without any hands over zeros (behind
                the bridge: its bias), and there is nothing in it to look at: its context is 0.
        """
        x = self._dropped(self.embed_source(source))
        ends = _ends(source, lengths)
        states, last = self.encoder(x, lengths=None if lengths is None else ends)
        looked = None
        if self.attention is not None:
            real = torch.arange(source.shape[1], device=source.device) < ends[:, None]  # (B, S)
            looked = self.attention.look_at(states, real)
        return Handed(self._hand_over(last), looked)

    def decode(
        self,
        target_in: Tensor,
        memory: Handed,
        lengths: Lengths = None,
        *,
        sampling: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Logits of the next token at every place of the targets.

        Args:
            target_in: (B, T), the targets behind `spec.start_token_id`, padding on the right.
            memory: of their sources.
            lengths: (B,), the real tokens of each row, the start token counted; None: all of them.
            sampling: how likely each token but the first is replaced by the one that the model itself thinks likeliest
                there (scheduled sampling: Bengio et al. 2015, arXiv 1506.03099, section 2.4). 0 is teacher forcing, 1
                greedy generation.
            generator: throws the coins; on the ids' device.

        Returns:
            (B, T, V); what stands at padded places means nothing.
        """
        return self.logits(self.hidden_states(target_in, memory, lengths, sampling=sampling, generator=generator))

    def hidden_states(
        self,
        target_in: Tensor,
        memory: Handed,
        lengths: Lengths = None,
        *,
        sampling: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The same up to the output matrix: (B, T, F)."""
        assert 0 <= sampling <= 1, f"a share of {sampling}"
        if sampling:
            coins = torch.rand(target_in.shape, generator=generator, device=target_in.device) < sampling
            features, _ = self._one_by_one(target_in, memory, coins)
        else:
            features, _ = self._forced(target_in, memory, lengths)
        return self._dropped(features)

    def alignment(self, target_in: Tensor, memory: Handed) -> Tensor:
        """Where the decoder looks as it reads each token of the targets: weights (B, T, S), of a model with attention.

        Row t belongs to the token that follows `target_in[:, t]`.
        """
        _, weights = self._forced(target_in, memory, None)
        assert weights is not None, "a model without attention looks nowhere"
        return weights

    def step(self, ids: Tensor, state: State, memory: Handed) -> tuple[Tensor, State, Tensor | None]:
        """One token of each target.

        Args:
            ids: (B,).
            state: before it; at first the memory's.
            memory: of the sources.

        Returns:
            logits (B, V), the state after, and the weights (B, S), None without attention.
        """
        features, state, weights = self._advance(ids[:, None], state, memory)
        logits = self.logits(self._dropped(features))[:, 0]
        return logits, state, None if weights is None else weights[:, 0]

    def logits(self, features: Tensor) -> Tensor:
        """(..., F) -> (..., V)"""
        logits: Tensor = self.lm_head(features)
        return logits

    def _forced(self, target_in: Tensor, memory: Handed, lengths: Lengths) -> tuple[Tensor, Tensor | None]:
        """Teacher forcing: features (B, T, F) and weights (B, T, S), at once where no step waits for another."""
        if self.fuses_before:
            return self._one_by_one(target_in, memory, None)
        x = self._dropped(self.embed_target(target_in))
        hidden, _ = self.decoder(x, memory.state, None if lengths is None else _ends(target_in, lengths))
        return self._look(hidden, memory, hidden)

    def _one_by_one(self, target_in: Tensor, memory: Handed, coins: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The same step by step; where `coins` (B, T) is True the model reads its own token."""
        state = memory.state
        features: list[Tensor] = []
        weights: list[Tensor] = []
        for t in range(target_in.shape[1]):
            ids = target_in[:, t : t + 1]
            if coins is not None and t:
                ids = torch.where(coins[:, t : t + 1], self._likeliest(features[-1]), ids)
            feature, state, weight = self._advance(ids, state, memory)
            features.append(feature)
            weights += [] if weight is None else [weight]
        return torch.cat(features, dim=1), torch.cat(weights, dim=1) if weights else None

    def _advance(self, ids: Tensor, state: State, memory: Handed) -> tuple[Tensor, State, Tensor | None]:
        """One step: ids (B, 1) -> features (B, 1, F), the state, weights (B, 1, S)."""
        x, weights = self._dropped(self.embed_target(ids)), None
        if self.fuses_before:
            x, weights = self._look(state[0][-1][:, None], memory, x)
        hidden, state = self.decoder.step(x[:, 0], state)
        features = hidden[:, None]
        if not self.fuses_before:
            features, weights = self._look(features, memory, features)
        return features, state, weights

    def _look(self, query: Tensor, memory: Handed, own: Tensor) -> tuple[Tensor, Tensor | None]:
        """What states (B, T, H) get when they ask, fused with `own`; `own` itself where there is no attention."""
        if self.attention is None:
            return own, None
        assert memory.looked is not None
        fused, weights = self.attention(query, memory.looked, own)
        return fused, weights

    @torch.no_grad()
    def _likeliest(self, features: Tensor) -> Tensor:
        return self.logits(features).argmax(dim=-1)

    def _hand_over(self, last: State) -> State:
        """The encoder's last state, (layers * directions, B, H) each, to the decoder's first."""
        above = self.spec.encoder_layers - self.spec.decoder_layers
        handed = []
        for bridge, part in zip(zip(*self.bridges, strict=True), last, strict=True):
            sides = part.unflatten(0, (self.spec.encoder_layers, -1))  # (layers, directions, B, H)
            layers = sides.transpose(1, 2).flatten(2)  # (layers, B, M)
            handed.append([cross(layers[max(0, layer + above)]) for layer, cross in enumerate(bridge)])
        return tuple(map(torch.stack, handed))

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.spec.dropout, self.training)


def _ends(ids: Tensor, lengths: Lengths) -> Tensor:
    """Real tokens of each row, (B,)."""
    if lengths is None:
        return torch.full((len(ids),), ids.shape[1], device=ids.device)
    return torch.as_tensor(lengths, device=ids.device)
