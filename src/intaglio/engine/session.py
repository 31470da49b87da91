"""What the generation loop needs of a model: read the prompts, then take one token a row at a time.

A session holds what a model remembers of a batch: a decoder its keys and values, an encoder-decoder those of the target
and of the source, a recurrent model its state. The loop, the sampler, the stop rules and beam search know nothing else.

Legend: B rows, T prompt tokens, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from intaglio.engine.cache import ContiguousCache
from intaglio.models.decoder import Decoder
from intaglio.models.encoder_decoder import EncoderDecoder
from intaglio.models.recurrent import RecurrentModel
from intaglio.models.seq2seq import Seq2Seq
from intaglio.parts.context import PAD
from intaglio.parts.memory import Kept
from intaglio.parts.recurrent import State

__all__ = [
    "DecoderSession",
    "EncoderDecoderSession",
    "RecurrentSession",
    "Seq2SeqSession",
    "Session",
    "left_padded",
    "right_padded",
    "session_class",
]


class Session(Protocol):
    """One batch while it grows; made of a model and of the tokens each row may take at most."""

    continues: ClassVar[bool]
    """Whether what is made continues the prompt in one context; else it is a text of its own, a translation say."""

    def __init__(self, model: Any, max_tokens: Sequence[int]) -> None: ...

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Reads the prompts, none of them empty: the logits (B, V) of each row's first new token."""

    def step(self, ids: Tensor) -> Tensor:
        """Takes the next token of each row, (B,): the logits (B, V) of the one after it."""

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was; a row may be taken more than once, or not at all."""


class DecoderSession:
    """A decoder over a contiguous cache; rows are padded on the left, so that all grow in the same column."""

    continues: ClassVar[bool] = True

    def __init__(self, model: Decoder, max_tokens: Sequence[int]) -> None:
        self._model, self._max_tokens = model, max_tokens

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """See `Session`."""
        weight = self._model.embed_tokens.weight
        ids, self._positions = left_padded(prompts, weight.device)
        planned = [len(prompt) + new for prompt, new in zip(prompts, self._max_tokens, strict=True)]
        self._cache = ContiguousCache(
            self._model.spec,
            len(prompts),
            ids.shape[1] + max(self._max_tokens),
            planned=torch.tensor(planned, device=weight.device),
            dtype=weight.dtype,
            device=weight.device,
        )
        return self._forward(ids)

    def step(self, ids: Tensor) -> Tensor:
        """See `Session`."""
        # rows that have finished stay at the last place: a table of learned positions ends there
        self._positions = (self._positions[:, -1:] + 1).clamp(max=self._model.spec.context_limit - 1)
        return self._forward(ids[:, None])

    def reorder(self, rows: Tensor) -> None:
        """See `Session`."""
        self._positions = self._positions[rows]
        self._cache.reorder(rows)

    def _forward(self, ids: Tensor) -> Tensor:
        hidden = self._model.hidden_states(ids, self._positions, self._cache)[:, -1]  # (B, E)
        return self._model.logits(hidden)


class EncoderDecoderSession:
    """The prompt is the source; the target begins with the start token. Keys and values of both sides are kept."""

    continues: ClassVar[bool] = False

    def __init__(self, model: EncoderDecoder, max_tokens: Sequence[int]) -> None:
        self._model, self._max_tokens = model, max_tokens

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """See `Session`."""
        spec, weight = self._model.spec, self._model.encoder.embed_tokens.weight
        self._memory = Kept(self._model.encode(*right_padded(prompts, weight.device)))
        self._cache = ContiguousCache(
            spec.decoder, len(prompts), max(self._max_tokens), dtype=weight.dtype, device=weight.device
        )
        return self.step(torch.full((len(prompts),), spec.start_token_id, device=weight.device))

    def step(self, ids: Tensor) -> Tensor:
        """See `Session`."""
        place = ids.new_full((len(ids), 1), self._cache.used)
        hidden = self._model.advance(ids[:, None], place, self._cache, self._memory)[:, -1]  # (B, E)
        return self._model.logits(hidden)

    def reorder(self, rows: Tensor) -> None:
        """See `Session`."""
        self._memory.reorder(rows)
        self._cache.reorder(rows)


class RecurrentSession:
    """A recurrent model remembers its state alone: the same memory however long a text becomes."""

    continues: ClassVar[bool] = True
    _state: State

    def __init__(self, model: RecurrentModel, max_tokens: Sequence[int]) -> None:
        self._model = model

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """See `Session`."""
        ids, lengths = right_padded(prompts, self._model.embed_tokens.weight.device)
        return self._forward(*self._model.hidden_states(ids, lengths=lengths))

    def step(self, ids: Tensor) -> Tensor:
        """See `Session`."""
        return self._forward(*self._model.hidden_states(ids[:, None], self._state))

    def reorder(self, rows: Tensor) -> None:
        """See `Session`."""
        self._state = tuple(part[:, rows] for part in self._state)

    def _forward(self, outputs: Tensor, state: State) -> Tensor:
        self._state = state
        return self._model.logits(state[0][-1])  # the last layer's, at each row's own last token


class Seq2SeqSession:
    """The prompt is the source; the target begins with the start token. Its state and the source are kept."""

    continues: ClassVar[bool] = False

    def __init__(self, model: Seq2Seq, max_tokens: Sequence[int]) -> None:
        self._model = model

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """See `Session`."""
        device = next(self._model.parameters()).device
        self._memory = self._model.encode(*right_padded(prompts, device))
        self._state = self._memory.state
        return self.step(torch.full((len(prompts),), self._model.spec.start_token_id, device=device))

    def step(self, ids: Tensor) -> Tensor:
        """See `Session`."""
        logits, self._state, _ = self._model.step(ids, self._state, self._memory)
        return logits

    def reorder(self, rows: Tensor) -> None:
        """See `Session`."""
        self._memory = self._memory.take(rows)
        self._state = tuple(part[:, rows] for part in self._state)


def session_class(model: Any) -> type[Session]:
    """The kind of session that `model` generates in."""
    kinds: list[tuple[type, type[Session]]] = [
        (Decoder, DecoderSession),
        (EncoderDecoder, EncoderDecoderSession),
        (RecurrentModel, RecurrentSession),
        (Seq2Seq, Seq2SeqSession),
    ]
    return next(session for kind, session in kinds if isinstance(model, kind))


def left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and positions, (B, T) each; padding on the left, so that every row's next token is in the same column."""
    longest = max(map(len, prompts))
    ids = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    positions = [[PAD] * (longest - len(prompt)) + list(range(len(prompt))) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(positions, device=device)


def right_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids (B, T) and lengths (B,); padding on the right."""
    longest = max(map(len, prompts))
    ids = [list(prompt) + [0] * (longest - len(prompt)) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor([len(prompt) for prompt in prompts], device=device)
