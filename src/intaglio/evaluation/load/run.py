"""A load test: servers, what they are asked, and the levels of load at which they are measured.

Servers that are compared take turns level by level and are asked the same, so that a machine that slows down slows all.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from intaglio.errors import UserError
from intaglio.evaluation.load.arrivals import ClosedLoop, Level, Moments, OpenLoop, Poisson
from intaglio.evaluation.load.clock import now
from intaglio.evaluation.load.conversations import Conversation, hold
from intaglio.evaluation.load.latency import ENOUGH, Sample, summary
from intaglio.evaluation.load.prompts import Prompts, RandomPrompts, Vocabulary, words_of
from intaglio.evaluation.load.queueing import mean_between, waited
from intaglio.evaluation.load.self_check import Watch, most_connections, room_for, watching
from intaglio.evaluation.load.sending import send
from intaglio.evaluation.load.slo import Targets, goodput, highest, rate_middle, whole_middle
from intaglio.evaluation.load.target import Prompt, Target, name_model

if TYPE_CHECKING:
    import httpx2

__all__ = ["Measured", "Observer", "Plan", "Search", "compare", "measure", "summarise"]


@dataclass(frozen=True)
class Search:
    """Looks for the highest load that keeps the targets.

    Attributes:
        kind: what is raised.
        low: where it begins.
        high: what it does not go beyond.
        moments: of open loops.
    """

    kind: Literal["concurrency", "rate"]
    low: float = 1
    high: float = 256
    moments: Moments = field(default_factory=Poisson)


@dataclass(frozen=True)
class Plan:
    """What each server is put through.

    Attributes:
        levels: one after the other.
        prompts: what is asked.
        requests: conversations at each level; None: see `ClosedLoop.count` and `OpenLoop.count`.
        duration: seconds after which a level begins no more; then `requests` is a limit only where it is given.
        warmup: requests before the first level, not counted.
        targets: what answers may take.
        search: looks for the highest load, behind the levels.
    """

    levels: tuple[Level, ...] = (ClosedLoop(1), ClosedLoop(8), ClosedLoop(16))
    prompts: Prompts = field(default_factory=RandomPrompts)
    requests: int | None = None
    duration: float | None = None
    warmup: int = 1
    targets: Targets | None = None
    search: Search | None = None

    def count(self, level: Level) -> int | None:
        """Conversations at a level; None for as many as its duration allows."""
        return self.requests or (None if self.duration else level.count())

    def seconds(self, level: Level) -> float:
        """How long a level should take, as far as the plan says."""
        return self.duration or (self.count(level) or 0) / level.load

    def check(self, target: Target) -> None:
        """Refuses what does not fit together.

        Raises:
            UserError: several turns on an endpoint that has none, a search without targets.
        """
        if self.prompts.multi_turn and target.endpoint != "chat":
            raise UserError("conversations of several turns are chats", where="--multi-turn", mend="--endpoint chat")
        if self.search is not None and self.targets is None:
            raise UserError("a search needs targets", where="--find", mend="such as --slo ttft=500ms,tpot=50ms")


@dataclass(frozen=True)
class Measured:
    """One server at one level.

    Attributes:
        name: what the report calls the server.
        url: its address.
        model: as the server calls it.
        level: the load.
        samples: every request.
        summary: what they come to; see `latency`, and `warnings` for what the user has to know of it.
    """

    name: str
    url: str
    model: str
    level: Level
    samples: list[Sample] = field(repr=False)
    summary: dict[str, Any] = field(repr=False)

    @property
    def kept(self) -> bool:
        """Whether it kept the targets."""
        return bool(self.summary["goodput"]["kept"])


class Observer:
    """Is told what happens, for a table on a terminal. This one does nothing."""

    def begins(self, target: Target, level: Level, count: int | None) -> None:
        """A level with so many conversations."""

    def sends(self) -> None:
        """A request."""

    def sees(self, sample: Sample) -> None:
        """A request is over."""

    def ends(self, measured: Measured) -> None:
        """A level is over."""

    def finds(self, target: Target, search: Search, load: float | None) -> None:
        """A search is over."""

    def says(self, line: str) -> None:
        """Something that the user should know."""


def measure(target: Target, plan: Plan, observer: Observer | None = None) -> list[Measured]:
    """One server at each level of the plan.

    Raises:
        UserError: see `compare`.
    """
    return asyncio.run(compare([target], plan, observer))


async def compare(targets: Sequence[Target], plan: Plan, observer: Observer | None = None) -> list[Measured]:
    """Servers side by side: at each level one after the other.

    Raises:
        UserError: one does not answer, or names no model; or see `Plan.check`.
    """
    observer = observer or Observer()
    measured: list[Measured] = []
    async with AsyncExitStack() as stack:
        sessions = []
        for target in targets:
            plan.check(target)
            client = await stack.enter_async_context(target.client())
            sessions.append(await Session.begun(client, target, plan, observer))
        for level in plan.levels:
            for session in sessions:
                measured.append(await session.measure(level))
        for session in sessions:
            if plan.search is not None:
                measured += await session.find(plan.search)
    return measured


@dataclass
class Session:
    """One server in the course of a test."""

    client: "httpx2.AsyncClient"
    target: Target
    plan: Plan
    observer: Observer
    vocabulary: Vocabulary
    _seen: Counter[str] = field(default_factory=Counter)

    @classmethod
    async def begun(cls, client: "httpx2.AsyncClient", target: Target, plan: Plan, observer: Observer) -> "Session":
        """Knows the model and its words, and has warmed it up."""
        await name_model(client, target)
        vocabulary = Vocabulary(())
        if isinstance(plan.prompts, RandomPrompts):
            vocabulary = await words_of(client, target)
            if not vocabulary.ids:
                observer.says(
                    f"{target.name} does not tokenise (/tokenize): prompts have as many words as tokens are wanted"
                )
        session = cls(client, target, plan, observer, vocabulary)
        await ClosedLoop(1).run(session._hold_quietly, session._asked("warm-up", plan.warmup))
        return session

    async def measure(self, level: Level) -> Measured:
        """The figures of one level."""
        count = self.plan.count(level)
        conversations = self._asked(f"{level.kind} {level.load:g}", count)
        room_for(level.concurrency if isinstance(level, ClosedLoop) else most_connections())
        self.observer.begins(self.target, level, None if self.plan.prompts.multi_turn else count)
        before = await waited(self.client)
        with watching() as watch:
            samples = await self._run(level, conversations)
        queue = mean_between(before, await waited(self.client))
        found = summarise(samples, self.plan, watch)
        found["queue_s"] = found["queue_s"] if found["queue_s"]["count"] else queue
        assert self.target.model is not None
        measured = Measured(self.target.name, self.target.url, self.target.model, level, samples, found)
        self.observer.ends(measured)
        return measured

    async def find(self, search: Search) -> list[Measured]:
        """Every level that the search looked at."""
        measured: list[Measured] = []
        seed = self.plan.prompts.seed

        async def keeps(load: float) -> bool:
            level: Level = (
                ClosedLoop(int(load)) if search.kind == "concurrency" else OpenLoop(load, search.moments, seed)
            )
            measured.append(await self.measure(level))
            return measured[-1].kept

        if search.kind == "concurrency":
            best: float | None = await highest(keeps, int(search.low), int(search.high), whole_middle)
        else:
            best = await highest(keeps, search.low, search.high, rate_middle)
        self.observer.finds(self.target, search, best)
        for one in measured:
            one.summary["highest"] = one.level.load == best
        return measured

    def _asked(self, level: str, count: int | None) -> "islice[Conversation] | list[Conversation]":
        """Prompts of this level alone, so that no cache knows them; made beforehand where their number is known."""
        self._seen[level] += 1
        fresh = level if self._seen[level] == 1 else f"{level} #{self._seen[level]}"
        endless = self.plan.prompts.conversations(self.vocabulary, self.target.endpoint, fresh)
        return islice(endless, None) if count is None else list(islice(endless, count))

    async def _run(self, level: Level, conversations: "islice[Conversation] | list[Conversation]") -> list[Sample]:
        until = now() + (self.plan.duration or float("inf"))
        if isinstance(level, ClosedLoop):
            return await level.run(self._hold, conversations, until)
        return await level.run(self._hold, conversations, until, self.plan.seconds(level))

    async def _hold(self, conversation: Conversation, due: float | None) -> list[Sample]:
        return await hold(self._send, conversation, due)

    async def _hold_quietly(self, conversation: Conversation, due: float | None) -> list[Sample]:
        async def quietly(prompt: Prompt, max_tokens: int, due: float | None) -> Sample:
            return await send(self.client, self.target, prompt, max_tokens, due)

        return await hold(quietly, conversation, due)

    async def _send(self, prompt: Prompt, max_tokens: int, due: float | None) -> Sample:
        self.observer.sends()
        sample = await send(self.client, self.target, prompt, max_tokens, due)
        self.observer.sees(sample)
        return sample


def summarise(samples: Sequence[Sample], plan: Plan, watch: Watch | None = None) -> dict[str, Any]:
    """The summary of a level, with its goodput, the generator's own state, and warnings."""
    found = summary(samples)
    late, token = found["lateness_s"]["p99"], found["tpot_s"]["p50"]
    found["goodput"] = goodput(samples, plan.targets, found["duration_s"]) if plan.targets else None
    found["generator"] = watch.found() if watch else None
    found["warnings"] = [*_warnings(found, plan), *(watch.warnings(late, token) if watch else ())]
    return found


def _warnings(found: dict[str, Any], plan: Plan) -> list[str]:
    """What the figures do not say by themselves."""
    good = found["requests"] - found["failed"]
    said = []
    if good < ENOUGH:
        said.append(f"the percentiles are of {good}: a p99 wants {ENOUGH} answers or more")
    counted = found["tokens_counted_by"]
    if "pieces" in counted:
        said.append("the server tells no usage: a piece of an answer counts as a token; --tokenizer DIR counts tokens")
    shorter = found["wanted_output_tokens"] - found["output_tokens"]
    if shorter > 0.05 * max(1, found["wanted_output_tokens"]):
        said.append(
            f"answers have {found['output_tokens']} tokens where {found['wanted_output_tokens']} were asked for"
        )
    shared = plan.prompts.shared * good if isinstance(plan.prompts, RandomPrompts) else found["input_tokens"]
    if not plan.prompts.multi_turn and found["cached_tokens"] > (shared + found["input_tokens"]) / 2:
        said.append(f"{found['cached_tokens']} tokens of prompts came from the server's cache: take another --seed")
    return said
