"""What the search found, in words, and as the lines that a recipe takes. No torch."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from intaglio.planning.fit import Fit, Found
from intaglio.specs.parallel import ParallelSpec

__all__ = ["PARTS", "describe", "explain", "layout_words", "recipe_lines", "settings"]

PARTS = {
    "products": "matrix products",
    "attention": "attention",
    "passes": "element-wise passes over memory",
    "again": "computing again what was not kept",
    "launches": "launching kernels",
    "tensor": "collectives of tensor parallelism",
    "context": "collectives of context parallelism",
    "experts": "collectives between experts",
    "bubble": "the pipeline's bubble",
    "gathers": "waiting for ZeRO's collectives or the sum of gradients",
    "overlap": "what collectives take from the computation beside them",
    "copies": "copies to and from what is sent",
    "optimizer": "the optimizer's step and adding up gradients",
    "beside": "other models",
    "rollout": "drawing answers",
}
_SHARE = 0.03
"""Of a step, from which on a part is worth a word."""


def layout_words(layout: ParallelSpec) -> str:
    """A layout in a few words: `dp 8, zero 2, pp 4 (zbv_zero_bubble)`."""
    sizes = {"dp": layout.dp, "hsdp": layout.hsdp, "tp": layout.tp, "cp": layout.cp, "ep": layout.ep}
    words = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    if layout.zero:
        words.insert(1, f"zero {layout.zero}")
    if layout.pp.ranks > 1:
        chunks = f", {layout.pp.chunks_a_rank} stages a rank" if layout.pp.chunks_a_rank > 1 else ""
        words.append(f"pp {layout.pp.ranks} ({layout.pp.schedule}{chunks})")
    return ", ".join(words) or "one device"


def describe(found: Found) -> str:
    """One line: the layout, the batch, what is kept."""
    job = found.job
    again: dict[int | str, str] = {0: "nothing is computed again", 1: "every layer is computed again"}
    kept = again.get(job.checkpointing, f"checkpointing {job.checkpointing}")
    batch = f"{_count(job.micro_batch, 'sequence')} at a time, {_count(job.accumulation, 'micro-batch')} a step"
    return f"{layout_words(found.layout)}; {batch}; {kept}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "es" if what.endswith("h") else "s")


def explain(fit: Fit, room: int) -> Iterator[str]:
    """Why this one: where its time goes, what the second does worse, and what a faster one would need.

    Args:
        fit: that was found.
        room: bytes of a device.
    """
    winner = fit.winner
    spent = sorted(winner.time.parts.items(), key=lambda part: -part[1])
    shares = [f"{PARTS[name]} {seconds / winner.time.seconds:.0%}" for name, seconds in spent]
    many = [words for words, (_, seconds) in zip(shares, spent, strict=True) if seconds > _SHARE * winner.time.seconds]
    yield f"Its time goes to {', '.join(many)}."
    if fit.second is not None:
        yield _against(fit.second, winner)
    else:
        yield "No other layout fits."
    if fit.faster is not None:
        gain = winner.time.seconds / fit.faster.time.seconds - 1
        needs = f"{fit.faster.num_bytes / 2**30:.1f} GiB of {room / 2**30:.1f}"
        yield f"Faster by {gain:.1%}, were there room, would be {describe(fit.faster)}: it needs {needs}."
    yield f"{fit.possible:,} combinations are possible; memory was planned for {fit.planned:,}, no other can be faster."


def _against(second: Found, winner: Found) -> str:
    slower = second.time.seconds / winner.time.seconds - 1
    words = f"Second, {slower:.1%} slower: {describe(second)}."
    names = dict.fromkeys((*second.time.parts, *winner.time.parts))
    change = {name: second.time.parts.get(name, 0.0) - winner.time.parts.get(name, 0.0) for name in names}
    worth = {name: seconds for name, seconds in change.items() if abs(seconds) > 0.002 * winner.time.seconds}
    more = _listed({name: seconds for name, seconds in worth.items() if seconds > 0})
    less = _listed({name: -seconds for name, seconds in worth.items() if seconds < 0})
    if more:
        words += f" It spends more on {more}"
        words += f", less on {less}." if less else "."
    return words


def _listed(parts: Mapping[str, float]) -> str:
    """The two largest, with milliseconds."""
    largest = sorted(parts.items(), key=lambda part: -part[1])[:2]
    return " and ".join(f"{PARTS[name]} ({1000 * seconds:,.0f} ms)" for name, seconds in largest)


def settings(found: Found) -> dict[str, Any]:
    """What a recipe has to say for it."""
    job = found.job
    batch = {"micro_batch": job.micro_batch, "accumulation": job.accumulation}
    return {**batch, "checkpointing": job.checkpointing, "parallel": found.layout.plain()}


def recipe_lines(found: Found) -> str:
    """The same as YAML."""
    text: str = yaml.safe_dump(settings(found), sort_keys=False)
    return text
