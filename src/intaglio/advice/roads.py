"""The roads from a model to a task, told by what each brings along; and how far that meets what a task needs. No torch.

What a road can give is between 0 (nothing) and 1. The numbers are coarse, and this is what they stand on:

- Facts: retrieval brings them, training hardly does, and several times as dear (Ovadia et al. 2023, arXiv 2312.05934).
- Style and format: training brings them, few rows are enough (Zhou et al. 2023, LIMA, arXiv 2305.11206); examples in
  the prompt go some of the way (Brown et al. 2020, arXiv 2005.14165).
- New skills: full fine-tuning learns more than LoRA, and forgets more (Biderman et al. 2024, arXiv 2405.09673).
- Four bits cost next to no quality (Dettmers et al. 2023, arXiv 2305.14314).
"""

from dataclasses import dataclass
from typing import Final, Literal

from intaglio.advice.needs import Level, Needs

__all__ = ["ROADS", "Road", "fit"]

_WEIGHTS: Final[dict[Level, float]] = {"none": 0.0, "some": 1.0, "much": 2.0}
_TAUGHT: Final = 200
"""Rows after which training is taken to have seen what it needs; with fewer its gifts count in proportion."""


@dataclass(frozen=True)
class Road:
    """One way to have a model do a task.

    Attributes:
        name: for people, and of its results.
        facts, style, skill: what it can give of each, 0 to 1.
        training: what trains: nothing, an adapter, an adapter beside 4-bit weights, or all weights.
        examples: whether solved examples stand in the prompt.
        retrieval: whether passages of documents do.
    """

    name: str
    facts: float = 0.0
    style: float = 0.2
    skill: float = 0.0
    training: Literal["none", "lora", "qlora", "full"] = "none"
    examples: bool = False
    retrieval: bool = False


ROADS: Final = (
    Road("prompt"),
    Road("few-shot", style=0.6, skill=0.2, examples=True),
    Road("RAG", facts=1.0, retrieval=True),
    Road("LoRA", facts=0.2, style=1.0, skill=0.7, training="lora"),
    Road("QLoRA", facts=0.2, style=1.0, skill=0.7, training="qlora"),
    Road("full fine-tuning", facts=0.3, style=1.0, skill=1.0, training="full"),
    Road("LoRA+RAG", facts=1.0, style=1.0, skill=0.7, training="lora", retrieval=True),
)
"""All of them, from the least effort to the most."""


def fit(road: Road, needs: Needs) -> float:
    """How far the road meets the needs, 0 to 1: what it gives of each, by how much of it is needed."""
    wanted = _wanted(needs)
    given = _given(road, needs)
    total = sum(wanted.values())
    return sum(wanted[kind] * given[kind] for kind in wanted) / total if total else 1.0


def _wanted(needs: Needs) -> dict[str, float]:
    facts = 0.0 if needs.knowledge == "none" else 2.0
    return {"facts": facts, "style": _WEIGHTS[needs.style], "skill": _WEIGHTS[needs.skill]}


def _given(road: Road, needs: Needs) -> dict[str, float]:
    """Facts that change are not learned; and what is learned from few rows is learned in part."""
    learned = min(1.0, needs.examples / _TAUGHT) if road.training != "none" else 1.0
    facts = road.facts if road.retrieval else road.facts * learned * (needs.knowledge != "changing")
    plain = ROADS[0]  # what was not learned is there as it was before
    style, skill = (
        low + (high - low) * learned for low, high in ((plain.style, road.style), (plain.skill, road.skill))
    )
    return {"facts": facts, "style": style, "skill": skill}
