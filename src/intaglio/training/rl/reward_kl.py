"""The picture of an alignment: what was won, against how far the policy went for it.

Where the reward rises with the divergence and what else judges the answers does not, the reward is being exploited
(Gao et al. 2022, "Scaling Laws for Reward Model Overoptimization").
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from intaglio.plots import draw_curves

__all__ = ["draw_reward_kl", "reward_kl_panels"]

Lines = Sequence[dict[str, Any]]
Points = list[tuple[float, float]]
_POINTS: Final = 40
_WON: Final = "_win_rate"


def draw_reward_kl(lines: Lines, picture: Path) -> None:
    """Draws the panels of a log, if there are any, as a PNG.

    Raises:
        UserError: see `draw_curves`.
    """
    panels = reward_kl_panels(lines)
    if panels:
        draw_curves(picture, panels, "KL from the start, nats an answer")


def reward_kl_panels(lines: Lines) -> dict[str, dict[str, Points]]:
    """Panels by title, each curve in the order of steps.

    Rollouts are those that were learned from (of GRPO with a reference; its divergence is of a token). What judged the
    held-out prompts has a panel each; where nothing did, it is the margin that DPO and its like imply.
    """
    panels: dict[str, dict[str, Points]] = {}
    for kl, reward in (("objective/kl", "objective/scores"), ("kl", "reward")):
        if points := _together(lines, kl, reward):
            panels["reward of rollouts"] = {"": points}
    asked = [line for line in lines if "samples/kl" in line]
    for name in _judges(asked):
        mine, start = (_together(asked, "samples/kl", f"samples/{prefix}{name}") for prefix in ("", "start_"))
        panels[f"{name}, held-out prompts"] = {"policy": mine, "start": start}
    if not panels and (points := [*_margins(lines)]):
        panels["implied margin of a pair"] = {"": points}
    return {title: curves for title, curves in panels.items() if any(curves.values())}


def _judges(asked: Lines) -> list[str]:
    found = [key for line in asked[:1] for key in line if key.startswith("samples/") and key.endswith(_WON)]
    return [key.removeprefix("samples/").removesuffix(_WON) for key in found]


def _together(lines: Lines, x: str, y: str) -> Points:
    """Of lines that have both, the means over stretches, so that a curve has no more than some points."""
    both = [(float(line[x]), float(line[y])) for line in lines if x in line and y in line]
    size = max(-(-len(both) // _POINTS), 1)
    stretches = [both[start : start + size] for start in range(0, len(both), size)]
    return [(_mean([px for px, _ in some]), _mean([py for _, py in some])) for some in stretches]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _margins(lines: Lines) -> Iterator[tuple[float, float]]:
    """The divergence of each comparison, and the margin of the training step before it."""
    margin = None
    for line in lines:
        margin = line.get("rewards/margins", margin)
        if "samples/kl" in line and margin is not None:
            yield float(line["samples/kl"]), float(margin)
