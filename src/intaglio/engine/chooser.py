"""What the choice of a sequence's next token depends on besides the logits."""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from intaglio.engine.sampling_params import SamplingParams
from intaglio.engine.stopping import StopRules
from intaglio.engine.structured import Shape
from intaglio.errors import UserError
from intaglio.text.tokenizer import Tokenizer

__all__ = ["Chooser", "Occurred"]

Ids = NDArray[np.int64]


class Chooser:
    """The sampler's memory of one sequence: what occurred, what may not come, its random numbers.

    Made when the sequence is admitted, and kept while it lives, also where its keys and values are not. In each step
    `sampler.choose` reads the choosers of all sequences that get a token; whoever keeps the token calls `take`.

    Args:
        params: how this sequence is sampled.
        tokenizer: for EOS, bad words and structured output.
        vocab_size: the model's, which may be larger or smaller than the tokenizer's.
        context: ids that the repetition penalty sees besides the output: the prompt.
        choice: which of `params.n`; each draws for itself.

    Raises:
        UserError: a shape that makes no sense; a biased or allowed token beyond the vocabulary; all tokens forbidden.
    """

    def __init__(
        self,
        params: SamplingParams,
        tokenizer: Tokenizer,
        vocab_size: int,
        context: Sequence[int] = (),
        choice: int = 0,
    ) -> None:
        self.params = params
        self.made: list[int] = []
        self.generator = _generator(params.seed, choice)
        self.bias = _bias(params, vocab_size)
        self.occurred = _occurred(params, context, vocab_size)
        self._forbidden = _within(params.forbidden_token_ids, vocab_size)
        self._ends = _within(StopRules.of(params, tokenizer.eos_token_ids).ids, vocab_size)
        self._bad_words = _BadWords(params.bad_words, tokenizer, vocab_size)
        self._allowed = _whitelist(params, vocab_size)
        self._shape = Shape(params.structured, tokenizer, vocab_size) if params.structured else None
        changes = (params.bad_words, self._forbidden, self.bias, self.occurred, params.allowed_token_ids, self._shape)
        self._unchanged = not any(changes)
        if len(self._forbidden) == vocab_size:
            raise UserError("every token is forbidden", where="forbidden_token_ids")

    @property
    def plain(self) -> bool:
        """Whether the next token is the likeliest one, whatever it is."""
        return self.params.greedy and self._unchanged and not self._too_early

    @property
    def over(self) -> bool:
        """Whether the text has its whole shape and nothing can follow: the sequence should be closed."""
        return self._shape is not None and self._shape.over

    @property
    def banned(self) -> list[int]:
        """Ids that may not come next; read only where `may_be` is None."""
        return [*self._forbidden, *self._too_early, *self._bad_words.after(self.made)]

    @property
    def may_be(self) -> NDArray[np.bool_] | None:
        """(V,): which tokens may come next, or None for all that are not banned.

        What must have a shape ends when it is whole, however early: where a whitelist or a shape leaves only banned
        tokens, the ban is off.
        """
        allowed = self._shape.allowed() if self._shape else self._allowed
        if allowed is None:
            return None
        rest = allowed.copy()
        rest[self.banned] = False
        return rest if rest.any() else allowed

    def take(self, token_id: int) -> None:
        """The sequence goes on with this token."""
        self.made.append(token_id)
        if self.occurred is not None:
            self.occurred.add(token_id)
        if self._shape is not None:
            self._shape.take(token_id)

    @property
    def _too_early(self) -> list[int]:
        return self._ends if len(self.made) < self.params.min_tokens else []


class Occurred:
    """The tokens that a sequence's penalties are about.

    Attributes:
        ids: (N,), each token once.
        charge: (N,) fp32, what is taken from each one's logit: presence, and frequency times how often it was made.
    """

    def __init__(self, params: SamplingParams, context: Ids, vocab_size: int) -> None:
        self._params, self._vocab_size = params, vocab_size
        self._number = len(context)
        self._ids, self._times = context, np.zeros(len(context), np.float32)
        self._place = {token_id: place for place, token_id in enumerate(context.tolist())}

    @property
    def ids(self) -> Ids:
        """See the class."""
        return self._ids[: self._number]

    @property
    def charge(self) -> NDArray[np.float32]:
        """See the class."""
        times = self._times[: self._number]
        charge = self._params.frequency_penalty * times + self._params.presence_penalty * (times > 0)
        return charge.astype(np.float32)

    def add(self, token_id: int) -> None:
        """A token was made."""
        if token_id >= self._vocab_size:  # the tokenizer may know ids that the model does not
            return
        place = self._place.setdefault(token_id, self._number)
        if place == self._number:
            self._grow(token_id)
        self._times[place] += 1

    def _grow(self, token_id: int) -> None:
        if self._number == len(self._ids):
            self._ids = np.resize(self._ids, 2 * self._number + 16)
            self._times = np.resize(self._times, len(self._ids))
        self._ids[self._number], self._times[self._number] = token_id, 0
        self._number += 1


class _BadWords:
    """Texts that are not to be made, as the tokens that spell them."""

    def __init__(self, words: Sequence[str], tokenizer: Tokenizer, vocab_size: int) -> None:
        spelt = [tokenizer.encode(form, add_special_tokens=False) for word in words for form in _forms(word)]
        self._alone = _within((ids[0] for ids in spelt if len(ids) == 1), vocab_size)
        self._ends: dict[int, list[list[int]]] = defaultdict(list)  # by the last token but one
        for ids in spelt:
            if len(ids) > 1 and ids[-1] < vocab_size:
                self._ends[ids[-2]].append(ids)

    def after(self, made: list[int]) -> Iterable[int]:
        """The tokens that would complete one."""
        begun = self._ends.get(made[-1], []) if made else []
        return [*self._alone, *(ids[-1] for ids in begun if made[1 - len(ids) :] == ids[:-1])]


def _forms(word: str) -> tuple[str, str]:
    """Alone and behind a space."""
    return word.lstrip(), f" {word.lstrip()}"


def _generator(seed: int | None, choice: int) -> torch.Generator | None:
    """Random numbers of this choice alone; None for those of the process."""
    if seed is None:
        return None
    digest = hashlib.blake2b(f"{seed}/{choice}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little", signed=True))


def _bias(params: SamplingParams, vocab_size: int) -> tuple[Ids, NDArray[np.float32]] | None:
    if not params.logit_bias:
        return None
    _check_known(params.logit_bias, "logit_bias", vocab_size)
    return np.array([*params.logit_bias], np.int64), np.array([*params.logit_bias.values()], np.float32)


def _whitelist(params: SamplingParams, vocab_size: int) -> NDArray[np.bool_] | None:
    if params.allowed_token_ids is None:
        return None
    _check_known(params.allowed_token_ids, "allowed_token_ids", vocab_size)
    allowed = np.zeros(vocab_size, bool)
    allowed[list(params.allowed_token_ids)] = True
    return allowed


def _check_known(ids: Collection[int], where: str, vocab_size: int) -> None:
    if max(ids) >= vocab_size:
        raise UserError(f"token {max(ids)} is beyond the model's vocabulary of {vocab_size}", where=where)


def _occurred(params: SamplingParams, context: Sequence[int], vocab_size: int) -> Occurred | None:
    repetition = params.repetition_penalty != 1
    if not (repetition or params.presence_penalty or params.frequency_penalty):
        return None
    seen = np.unique(np.asarray(context if repetition else (), np.int64))
    return Occurred(params, seen[seen < vocab_size], vocab_size)


def _within(ids: Iterable[int], vocab_size: int) -> list[int]:
    return sorted({i for i in ids if 0 <= i < vocab_size})
