"""When one sequence ends, and which of its text may be shown meanwhile."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from intaglio.engine.detokenizer import Detokenizer
from intaglio.engine.sampling_params import SamplingParams
from intaglio.text.tokenizer import Tokenizer

__all__ = ["FinishReason", "StopRules", "Stopping"]

FinishReason = Literal["stop", "length", "abort"]
"""`stop`: a stop id, a stop string, or the text has its shape; `length`: `max_tokens` were made; `abort`: given up."""


@dataclass(frozen=True)
class StopRules:
    """What ends a sequence.

    Attributes:
        ids: tokens that end it.
        strings: texts that end it.
        max_tokens: tokens made at most, the one that ends it included; None for no limit.
        min_tokens: until so many are made, `ids` and `strings` end nothing.
        shows_end: whether what ended it is shown too.
    """

    ids: frozenset[int] = frozenset()
    strings: tuple[str, ...] = ()
    max_tokens: int | None = None
    min_tokens: int = 0
    shows_end: bool = False

    @classmethod
    def of(cls, params: SamplingParams, eos_token_ids: Iterable[int], max_tokens: int | None = None) -> "StopRules":
        """The rules `params` ask for.

        Args:
            params: how the sequence is to end.
            eos_token_ids: with which the model's texts end.
            max_tokens: what the model's context leaves, where that is known; else what `params` say.
        """
        eos = () if params.ignore_eos else eos_token_ids
        ids = frozenset([*eos, *params.stop_token_ids])
        most = params.max_tokens if max_tokens is None else max_tokens
        return cls(ids, params.stop, most, params.min_tokens, params.include_stop_str_in_output)


class Stopping:
    """Follows one sequence: takes its ids one by one, gives the text that may be shown, and knows when it is over.

    Text that may be the beginning of a stop string is held back until that is decided.

    Args:
        rules: what ends the sequence.
        tokenizer: whose ids come in.
        skip_special_tokens: whether special tokens give no text.
        prompt: ids that the sequence continues; see `Detokenizer`.
    """

    def __init__(
        self, rules: StopRules, tokenizer: Tokenizer, skip_special_tokens: bool = True, prompt: Sequence[int] = ()
    ) -> None:
        self.rules = rules
        self.num_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.stopped_by: int | str | None = None
        self._strings = tuple(string for string in rules.strings if string)
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens, prompt)
        self._held = ""

    @classmethod
    def of(
        cls, params: SamplingParams, tokenizer: Tokenizer, prompt: Sequence[int] = (), max_tokens: int | None = None
    ) -> "Stopping":
        """As `params` ask for; see `StopRules.of`."""
        rules = StopRules.of(params, tokenizer.eos_token_ids, max_tokens)
        return cls(rules, tokenizer, params.skip_special_tokens, prompt)

    def add(self, token_id: int) -> str:
        """Takes the next id and returns the text that may be shown now.

        When this ends the sequence, `finish_reason` is set, `stopped_by` says which id or string did it (None for
        the length), and nothing more may be added.
        """
        assert self.finish_reason is None, "the sequence is over"
        self.num_tokens += 1
        armed = self.num_tokens > self.rules.min_tokens
        ends = armed and token_id in self.rules.ids
        shown = "" if ends and not self.rules.shows_end else self._look(self._detokenizer.add([token_id]), armed)
        if self.finish_reason is None and (ends or self.num_tokens == self.rules.max_tokens):
            shown += self._finish("stop", token_id) if ends else self._finish("length", None)
        return shown

    def close(self, reason: FinishReason = "length") -> str:
        """Ends a sequence from outside (the caller gave up, or its shape is whole); returns the text held back."""
        return "" if self.finish_reason else self._finish(reason, None)

    def _finish(self, reason: FinishReason, stopped_by: int | None) -> str:
        """The rest of the text, in which a stop string may yet be found once the last character is whole."""
        armed = self.num_tokens > self.rules.min_tokens
        shown = self._look(self._detokenizer.flush(), armed)
        if self.finish_reason is None:
            self.finish_reason, self.stopped_by = reason, stopped_by
            shown, self._held = shown + self._held, ""
        return shown

    def _look(self, new: str, armed: bool) -> str:
        """Adds `new` to what is held and returns what no stop string can reach any more."""
        text = self._held + new
        found = self._first_stop(text) if armed else None
        if found is not None:
            start, string = found
            self.finish_reason, self.stopped_by, self._held = "stop", string, ""
            return text[: start + len(string)] if self.rules.shows_end else text[:start]
        keep = self._undecided(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _first_stop(self, text: str) -> tuple[int, str] | None:
        """The stop string that begins first, and of those the one named first."""
        places = [(text.find(string), order) for order, string in enumerate(self._strings)]
        found = min((place for place in places if place[0] >= 0), default=None)
        return None if found is None else (found[0], self._strings[found[1]])

    def _undecided(self, text: str) -> int:
        """The length of the longest end of `text` with which a stop string begins."""
        longest = max((len(string) for string in self._strings), default=0) - 1
        ends = range(min(longest, len(text)), 0, -1)
        return next((n for n in ends if any(string.startswith(text[-n:]) for string in self._strings)), 0)
