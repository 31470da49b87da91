"""A small language of requests and answers whose worth is known, so that what alignment learns can be held against it.

An answer has three parts, each chosen from four, and is worth the sum of theirs; all else is worth the least. People
who compare two answers are played by Bradley and Terry's model, which reward models and DPO assume too: the better one
is preferred with probability sigmoid(its worth - the other's).
"""

import random
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from math import exp
from typing import Any, Final

__all__ = ["LEAST", "answers_to", "comparisons", "demonstrations", "prompts", "worth"]

_OPENINGS: Final = {"gladly :": 1.0, "yes :": 0.5, "well :": -0.5, "no :": -1.0}
_MIDDLES: Final = {
    "here is the {thing}": 1.0,
    "take the {thing}": 0.5,
    "the {thing} is gone": -0.5,
    "find the {thing} yourself": -1.0,
}
_CLOSINGS: Final = {"dear friend": 1.0, "please": 0.5, "now": -0.5, "and be quick": -1.0}
_WHO: Final = "fox hen owl bear crow deer hare mole wolf frog duck goat".split()
_THINGS: Final = "bread honey lamp rope coat bell knife boat drum book salt key milk map wool clock".split()

LEAST: Final = sum(min(part.values()) for part in (_OPENINGS, _MIDDLES, _CLOSINGS))
"""What an answer of another form is worth, or one about another thing."""


def prompts() -> list[str]:
    """All requests."""
    return [_request(who, thing) for who in _WHO for thing in _THINGS]


@cache
def answers_to(prompt: str) -> dict[str, float]:
    """The answers to a request, and what each is worth."""
    thing = prompt.split()[-2]
    return {
        " ".join(parts).format(thing=thing): _OPENINGS[parts[0]] + _MIDDLES[parts[1]] + _CLOSINGS[parts[2]]
        for parts in product(_OPENINGS, _MIDDLES, _CLOSINGS)
    }


def worth(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
    """A reward function: what each completion is worth as an answer to its prompt."""
    return [answers_to(asked).get(said.strip(), LEAST) for asked, said in zip(prompts, completions, strict=True)]


def demonstrations(rows: int, seed: int) -> Iterator[dict[str, str]]:
    """Requests with an answer that is drawn evenly: a model of them has no preference."""
    dice = random.Random(seed)
    for _ in range(rows):
        prompt = _drawn(dice)
        yield {"prompt": prompt, "completion": dice.choice([*answers_to(prompt)])}


def comparisons(rows: int, seed: int) -> Iterator[dict[str, str]]:
    """Requests with two answers, the preferred one as `chosen`."""
    dice = random.Random(seed)
    for _ in range(rows):
        prompt = _drawn(dice)
        (one, a), (other, b) = dice.sample([*answers_to(prompt).items()], 2)
        chosen, rejected = (one, other) if dice.random() < 1 / (1 + exp(b - a)) else (other, one)
        yield {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def _drawn(dice: random.Random) -> str:
    return _request(dice.choice(_WHO), dice.choice(_THINGS))


def _request(who: str, thing: str) -> str:
    return f"the {who} asks for the {thing} :"
