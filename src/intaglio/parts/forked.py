"""Several answers to one prompt in one forward, the prompt computed once: a document that forks.

Legend: B batch (1), H query heads, K key/value heads, L tokens of a document, D head width.

    prompt   p p p p          stored as   p p p p c c c r r r
    chosen          c c c     positions   0 1 2 3 4 5 6 4 5 6
    rejected        r r r

A branch attends to the prompt and to itself, and its positions go on from the prompt's: each has what it would have in
a document of its own, in value and gradient. The last token of the prompt is where the first of every branch is
predicted.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from intaglio.parts.context import Packed, Scores, attend, visible
from intaglio.parts.short_attention import documents_attention, fit_together, fits, short_causal_attention

__all__ = ["Forked", "fork_positions"]


class Forked(Packed):
    """No cache: one row of documents that fork, one behind the other.

    Args:
        forks: of each document the tokens of its prompt, which may be none, and of its branches.
    """

    def __init__(self, forks: Sequence[Sequence[int]]) -> None:
        super().__init__([sum(fork) for fork in forks])
        self._forks = [tuple(fork) for fork in forks]
        self._places: dict[tuple[int, int, int | None], Tensor] = {}
        self._biases: dict[tuple[int, ...], Tensor] = {}
        self._hidden: Tensor | None = None

    def planned(self, positions: Tensor) -> Tensor:
        """As in `Packed`, of the longest prompt with a branch of its own."""
        return positions.new_full((1, 1), max(map(_longest, self._forks)))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor | int, scores: Scores) -> Tensor:
        if isinstance(value, Tensor) and self._at_once(query, key, value, scores):
            return documents_attention(query, key, value, self._lengths, scores.scale, self._between())
        parts = (x.split(self._lengths, dim=2) for x in (query, key, value) if isinstance(x, Tensor))
        documents = zip(self._forks, *parts, strict=True)
        return torch.cat([self._attend_fork(fork, q, k, v, scores) for fork, q, k, v in documents], dim=2)

    def _at_once(self, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> bool:
        """As in `Packed`, with a gradient or without: a policy and its reference round equally."""
        unbounded = scores.window is None or scores.window >= max(map(_longest, self._forks))
        plain = unbounded and scores.softcap is None
        return plain and fit_together(query, key, value, self._lengths, scores.scale)

    def _between(self) -> Tensor:
        """(T, 2) int32: of each token the other branches that stand before it in its document."""
        if self._hidden is None:
            hidden = [between for fork in self._forks for between in _hidden(fork)]
            self._hidden = torch.tensor(hidden, dtype=torch.int32).view(-1, 2)
        return self._hidden

    def _attend_fork(self, fork: tuple[int, ...], query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        if len(fork) < 3:
            return self._attend_one(query, key, value, scores)
        unbounded = scores.window is None or scores.window >= _longest(fork)
        if unbounded and scores.softcap is None and fits(query, value):  # with a gradient or without: equal roundings
            return short_causal_attention(query, key, value, scores.scale, self._bias(fork, query))
        (q, *qs), (k, *ks), (v, *vs) = (x.split(fork, dim=2) for x in (query, key, value))
        outs = [self._attend_one(q, k, v, scores)] if fork[0] else []
        outs += [self._attend_branch(*branch, k, v, scores) for branch in zip(qs, ks, vs, strict=True)]
        return torch.cat(outs, dim=2)

    def _attend_branch(
        self, query: Tensor, key: Tensor, value: Tensor, prompt_key: Tensor, prompt_value: Tensor, scores: Scores
    ) -> Tensor:
        prompt = prompt_key.shape[2]
        if not prompt:
            return self._attend_one(query, key, value, scores)
        mask = self._mask_behind(prompt, query.shape[2], scores.window)
        return attend(query, torch.cat((prompt_key, key), 2), torch.cat((prompt_value, value), 2), scores, mask)

    def _mask_behind(self, prompt: int, length: int, window: int | None) -> Tensor:
        """(1, 1, branch, prompt + branch), True where seen."""
        sizes = prompt, length, window
        if sizes not in self._places:
            places = torch.arange(prompt + length, device=self._positions.device)[None]
            self._places[sizes] = visible(places[:, prompt:], places, window)
        return self._places[sizes]

    def _bias(self, fork: tuple[int, ...], like: Tensor) -> Tensor:
        """(L, L), minus infinity where a key is hidden from a query."""
        if fork not in self._biases:
            seen = _seen(fork).to(like.device)
            self._biases[fork] = torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill_(
                ~seen, float("-inf")
            )
        return self._biases[fork]


def fork_positions(fork: Sequence[int]) -> Tensor:
    """(L,) positions of a document: those of every branch go on from the prompt's."""
    prompt, *branches = fork
    return torch.cat([torch.arange(prompt), *(torch.arange(prompt, prompt + length) for length in branches)])


def _longest(fork: Sequence[int]) -> int:
    return fork[0] + max(fork[1:], default=0)


def _hidden(fork: Sequence[int]) -> Iterator[tuple[int, int]]:
    """For each token from where to where its document is hidden from it: from the prompt's end to its branch."""
    prompt, *branches = fork
    yield from ((0, 0) for _ in range(prompt))
    start = prompt
    for length in branches:
        yield from ((prompt, start) for _ in range(length))
        start += length


def _seen(fork: Sequence[int]) -> Tensor:
    """(L, L), True where the query sees the key: of the prompt, or of its own branch."""
    branch = torch.repeat_interleave(torch.tensor(fork))  # (L,) numbers, 0 for the prompt
    positions = fork_positions(fork)
    same = (branch[None] == 0) | (branch[None] == branch[:, None])
    return same & (positions[None] <= positions[:, None])
