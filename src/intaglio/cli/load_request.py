"""What `intaglio load` was asked for, read from its options."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from intaglio.cli import options
from intaglio.errors import UserError
from intaglio.evaluation.load.arrivals import ClosedLoop, Level, OpenLoop, parse_moments
from intaglio.evaluation.load.lengths import Lengths, parse_lengths
from intaglio.evaluation.load.prompts import FilePrompts, Prompts, RandomPrompts, read_prompts
from intaglio.evaluation.load.run import Plan, Search
from intaglio.evaluation.load.slo import parse_targets
from intaglio.evaluation.load.target import Endpoint, Target

if TYPE_CHECKING:
    from intaglio.text.tokenizer import Tokenizer

__all__ = ["Asked"]


@dataclass(frozen=True)
class Asked:
    """The options, by their names; see `load`."""

    url: list[str]
    concurrency: str
    rate: str
    arrivals: str
    requests: int | None
    duration: float | None
    input_tokens: str
    output_tokens: str
    shared_prefix: int
    prefixes: int
    prompts: Path | None
    multi_turn: bool
    turns: str
    endpoint: Endpoint
    model: str | None
    api_key: str | None
    ignore_eos: bool
    fields: str
    tokenizer: str | None
    timeout: float
    retry_429: int
    slo: str
    attainment: float
    find: Literal["concurrency", "rate"] | None
    between: str
    warmup: int
    seed: int

    def targets(self) -> list[Target]:
        """The servers.

        Raises:
            UserError: two have one name, or a field or the tokenizer is none.
        """
        fields = self._fields()
        key = self.api_key or os.environ.get(options.API_KEY)
        tokenizer = _load_tokenizer(self.tokenizer) if self.tokenizer else None
        found = []
        for given in self.url:
            name, _, url = given.rpartition("=") if "=" in given.partition("://")[0] else ("", "", given)
            more = {"timeout": self.timeout, "retries": self.retry_429, "tokenizer": tokenizer}
            found.append(Target(url, self.model, self.endpoint, key, fields, name, **more))  # type: ignore[arg-type]
        if len({target.name for target in found}) < len(found):
            raise UserError("two servers have one name", where="load", mend="say NAME=URL")
        return found

    def plan(self) -> Plan:
        """What they are put through.

        Raises:
            UserError: an option that makes no sense.
        """
        targets = parse_targets(self.slo, self.attainment, "--slo") if self.slo else None
        more = {"requests": self.requests, "duration": self.duration, "warmup": self.warmup}
        return Plan(self._levels(), self._prompts(), **more, targets=targets, search=self._search())  # type: ignore[arg-type]

    def _levels(self) -> tuple[Level, ...]:
        default = "" if self.rate or self.find else "1,8,16"
        moments = parse_moments(self.arrivals, "--arrivals")
        closed = [ClosedLoop(n) for n in _numbers(self.concurrency or default, int, "--concurrency")]
        return (*closed, *(OpenLoop(rate, moments, self.seed) for rate in _numbers(self.rate, float, "--rate")))

    def _search(self) -> Search | None:
        if self.find is None:
            return None
        ends = _numbers(self.between, int if self.find == "concurrency" else float, "--between")
        if len(ends) != 2 or ends[0] > ends[1]:
            raise UserError(f"{self.between!r} is no range", where="--between", mend="such as 1,256")
        low, high = ends
        return Search(self.find, low, high, parse_moments(self.arrivals, "--arrivals"))

    def _prompts(self) -> Prompts:
        made = parse_lengths(self.output_tokens, "--output-tokens")
        if self.prompts is not None:
            return FilePrompts(read_prompts(self.prompts, self.multi_turn), made, self.seed)
        read = parse_lengths(self.input_tokens, "--input-tokens")
        if read.said.isdigit() and self.shared_prefix > read.least:
            raise UserError(f"the prompts have {read.least} tokens only", where="--shared-prefix")
        turns = parse_lengths(self.turns, "--turns") if self.multi_turn else Lengths.fixed(1)
        return RandomPrompts(read, made, self.shared_prefix, self.prefixes, turns, self.seed)

    def _fields(self) -> dict[str, Any]:
        try:
            more = json.loads(self.fields)
        except ValueError:
            more = None
        if not isinstance(more, dict):
            raise UserError("no JSON object", where="--body", mend="""such as '{"min_tokens": 16}'""")
        return {**({"ignore_eos": True} if self.ignore_eos else {}), **more}


def _numbers(text: str, kind: Callable[[str], Any], where: str) -> list[Any]:
    try:
        values = [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        values = [-1]
    if any(not 0 < value < float("inf") for value in values):
        raise UserError(f"{text!r} is no list of numbers above 0", where=where, mend="such as 1,8,16")
    return values


def _load_tokenizer(name: str) -> "Tokenizer":
    from intaglio.checkpoints.models import load_tokenizer

    return load_tokenizer(name)
