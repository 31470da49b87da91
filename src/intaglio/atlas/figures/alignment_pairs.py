"""What is learned from comparisons: a reward model's margins, and the rewards that DPO's policy implies.

Both begin at one small model that answers requests without a preference, and read pairs whose labels Bradley and
Terry's model drew from a worth that is known: so that what was learned can be drawn over what is true.

Legend: A answers to a request.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from intaglio.atlas.charts import Axis, Curve, chart
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.requests import answers_to, comparisons
from intaglio.atlas.small_alignment import Aligned, by_worth, curve, log_probs, open_policy, some_prompts, text_ids
from intaglio.atlas.svg import Canvas
from intaglio.training.rl.scorers import load_scorer
from intaglio.training.rollout import answer_prompts, read_scores

__all__ = ["DPORewards", "RewardMargins", "slope"]

_ASKED: Final = 12  # requests whose answers are all looked at
_BINS: Final = 24
_LONGEST: Final = 12  # words of an answer
_POINTS: Final = 20  # of a curve at most


@dataclass(frozen=True)
class RewardMargins(Figure):
    """See above.

    Attributes:
        width: of the models.
        rows: of demonstrations, and of comparisons.
        batch: rows of a step.
        base_steps, steps: of the model, and of the reward model that begins at it.
        rate: of the latter's learning.
        fresh: pairs that nobody has read.
    """

    name: ClassVar[str] = "reward-margins"
    title: ClassVar[Words] = Words("A reward model's margins", "奖励模型的间隔")
    claim: ClassVar[Words] = Words(
        "A reward model learns from pairs alone: -log sigmoid(r(chosen) - r(rejected)). If people choose as "
        "sigmoid(difference of worth) says, that difference is what it finds.",
        "奖励模型只从成对比较学习：-log sigmoid(r(选中) - r(落选))。若人按 sigmoid(价值差) 选择，它找到的就是这个差。",
    )
    width: int = 32
    rows: int = 1500
    batch: int = 32
    base_steps: int = 180
    steps: int = 100
    rate: float = 3e-3
    fresh: int = 1500

    def data(self) -> Any:
        with tempfile.TemporaryDirectory() as scratch:
            runs = Aligned(Path(scratch), self.width, self.rows, self.batch)
            runs.base(self.base_steps)
            lines = runs.from_pairs("reward", self.steps, self.rate, {"kind": "reward", "center": 0.01})
            model, tokenizer = load_scorer(str(Path(scratch) / "reward" / "model"), "float32", "cpu", self.name)
        pairs = [*comparisons(self.fresh, 3)]
        sides = [
            torch.tensor(read_scores(model, [text_ids(tokenizer, one["prompt"], one[side]) for one in pairs]))
            for side in ("chosen", "rejected")
        ]
        asked = some_prompts(_ASKED)
        given = [
            torch.tensor(read_scores(model, [text_ids(tokenizer, one, said) for said in answers_to(one)]))
            for one in asked
        ]
        return {
            "curves": {
                name: curve(lines, name, _POINTS) for name in ("margin", "eval_margin", "accuracy", "eval_accuracy")
            },
            "margins": (sides[0] - sides[1]).tolist(),
            "gaps": [_gap(one) for one in pairs],
            "by_worth": by_worth(asked, [marks - marks.mean() for marks in given]),
        }

    def caption(self, data: Any) -> Words:
        right, wrong = _sides(data)
        count = len(data["margins"])
        share = 0.5 + (len(right) - len(wrong)) / count / 2  # of equal worths half by luck
        held, hit = data["curves"]["eval_accuracy"][-1][1], sum(margin > 0 for margin in data["margins"]) / count
        sided = sum(margin < 0 for margin in wrong) / max(len(wrong), 1)
        found = slope(data["by_worth"])
        return Words(
            f"A model of {self.width} features reads {self.steps} steps of {self.batch} pairs. It puts the chosen "
            f"answer above in {held:.0%} of the held-out pairs and {hit:.0%} of "
            f"{count} fresh ones; whoever knew every worth would be right in {share:.0%} of these, "
            f"because labels are drawn. Where the label goes against the worth, the model goes against the label in "
            f"{sided:.0%}. Reward rises by {found:.2f} for each unit of worth (1: as drawn). One seed.",
            f"宽 {self.width} 的模型读 {self.steps} 步、每步 {self.batch} 对。它在 {held:.0%} 的留出对与 "
            f"{count} 个新对中的 {hit:.0%} 里把选中者排在前；标签是抽签得来的，"
            f"即使知道一切价值，也只有 {share:.0%} 能对。标签与价值相反时，模型有 {sided:.0%} 站在价值一边。价值每高 "
            f"1，奖励高 {found:.2f}（1 即与抽签所用的一致）。单个种子。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        right, wrong = _sides(data)
        low, high = min(data["margins"]), max(data["margins"])
        names = say("chosen is worth more", "选中者价值更高"), say("chosen is worth less", "选中者价值更低")
        spread = [
            Curve(name, _shares(margins, low, high), look)
            for look, (name, margins) in enumerate(zip(names, (right, wrong), strict=True))
        ]
        return [
            _by_step(data, say, "margin", say("Margin: r(chosen) - r(rejected)", "间隔：r(选中) - r(落选)"), Axis("r")),
            _by_step(data, say, "accuracy", say("Chosen above rejected", "选中者在前的比例"), _PERCENT, 100),
            chart(
                say("Margins of fresh pairs", "新对的间隔"),
                spread,
                Axis(say("r(chosen) - r(rejected)", "r(选中) - r(落选)")),
                Axis(say("% of the pairs of its kind", "占该类对的 %"), low=0),
            ),
            _over_truth(say("Reward by true worth", "奖励与真实价值"), data, say("reward", "奖励"), say),
        ]


@dataclass(frozen=True)
class DPORewards(Figure):
    """See above.

    Attributes:
        width: of the models.
        rows: of demonstrations, and of comparisons.
        batch: rows of a step.
        base_steps, steps: of the model, and of DPO that begins at it.
        rate: of the latter's learning.
        beta: how far it is held to where it began.
    """

    name: ClassVar[str] = "dpo-rewards"
    title: ClassVar[Words] = Words("DPO's implicit rewards", "DPO 的隐式奖励")
    claim: ClassVar[Words] = Words(
        "A policy is its own reward model: what it implies is beta log(pi / pi_ref). DPO raises the difference of "
        "chosen and rejected, and nothing else: both may fall.",
        "策略就是自己的奖励模型：隐式奖励为 beta log(pi / pi_ref)。DPO 只抬高选中与落选之差，二者可以同时下降。",
    )
    width: int = 32
    rows: int = 1500
    batch: int = 32
    base_steps: int = 180
    steps: int = 100
    rate: float = 5e-4
    beta: float = 0.5

    def data(self) -> Any:
        with tempfile.TemporaryDirectory() as scratch:
            runs = Aligned(Path(scratch), self.width, self.rows, self.batch)
            before, said_before = self._read(runs.base(self.base_steps))
            lines = runs.from_pairs("dpo", self.steps, self.rate, {"kind": "dpo", "beta": self.beta})
            after, said_after = self._read(Path(scratch) / "dpo" / "model")
        asked = some_prompts(_ASKED)
        implied = [self.beta * (new - old) for new, old in zip(after, before, strict=True)]
        names = [f"{on}rewards/{of}" for on in ("", "eval_") for of in ("chosen", "rejected", "margins", "accuracies")]
        return {
            "curves": {name: curve(lines, name, _POINTS) for name in names},
            "by_worth": by_worth(asked, [rewards - rewards.mean() for rewards in implied]),
            "likely": {"before": by_worth(asked, before), "after": by_worth(asked, after)},
            "mass": {"before": _mass(before), "after": _mass(after)},
            "said": {"before": said_before, "after": said_after},
        }

    def _read(self, path: Path) -> tuple[list[Tensor], str]:
        """log p of all answers to some requests, and the likeliest text behind the first of these, word by word."""
        model, tokenizer = open_policy(path)
        asked = some_prompts(_ASKED)
        (said,) = answer_prompts(model, tokenizer, [tokenizer.encode(asked[0])], _LONGEST, 1)
        return [log_probs(model, tokenizer, prompt) for prompt in asked], said.strip()

    def caption(self, data: Any) -> Words:
        ends = {name: found[-1][1] for name, found in data["curves"].items()}
        chosen, rejected = ends["eval_rewards/chosen"], ends["eval_rewards/rejected"]
        margin, right = ends["eval_rewards/margins"], ends["eval_rewards/accuracies"]
        mass, found = data["mass"], slope(data["by_worth"])
        said = data["said"]
        return Words(
            f"{self.steps} steps of {self.batch} pairs, beta {self.beta:g}. On held-out pairs the implicit reward of "
            f"the chosen ends at {chosen:+.2f}, of the rejected at {rejected:+.2f}, a margin of {margin:.2f}; "
            f"{right:.0%} of them are told apart. Within a request the implicit reward rises by {found:.2f} for each "
            "unit of worth (1: as the labels were drawn). But a difference is all that is held: the answers that there "
            f"are in this language had {mass['before']:.0%} of the probability before and have {mass['after']:.0%} "
            f"after. Word by word the likeliest answer was “{said['before']}” and is “{said['after']}”. One seed.",
            f"{self.steps} 步、每步 {self.batch} 对，beta {self.beta:g}。在留出对上，选中者的隐式奖励止于 {chosen:+.2f}"
            f"，落选者止于 {rejected:+.2f}，间隔 {margin:.2f}；{right:.0%} 的对被分清。同一请求之内，价值每高 1，隐式奖"
            f"励高 {found:.2f}（1 即与抽签所用的一致）。但受约束的只有差：这门小语言的全部回答训练前共占概率 "
            f"{mass['before']:.0%}，训练后占 {mass['after']:.0%}。逐词最可能的回答原为“{said['before']}”，后为"
            f"“{said['after']}”。单个种子。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        names = {
            "chosen": say("chosen", "选中"),
            "rejected": say("rejected", "落选"),
            "margins": say("margin", "间隔"),
        }
        rewards = [
            Curve(name, data["curves"][f"rewards/{key}"], look, True) for look, (key, name) in enumerate(names.items())
        ]
        times = {"before": say("before", "训练前"), "after": say("after", "训练后")}
        likely = [Curve(name, data["likely"][key], look, True) for look, (key, name) in enumerate(times.items())]
        return [
            chart(
                say("Implicit rewards", "隐式奖励"),
                rewards,
                Axis(say("step", "步")),
                Axis("beta log(pi / pi_ref)"),
            ),
            _by_step(data, say, "rewards/accuracies", say("Chosen above rejected", "选中者在前的比例"), _PERCENT, 100),
            _over_truth(
                say("Implicit reward by true worth", "隐式奖励与真实价值"),
                data,
                say("implicit reward", "隐式奖励"),
                say,
            ),
            chart(
                say("Log-likelihood of answers by worth", "不同价值的回答的对数似然"),
                likely,
                Axis(say("worth of the answer", "回答的价值")),
                Axis(say("log p, nats an answer", "log p（nat/回答）")),
            ),
        ]


_PERCENT: Final = Axis("%", low=0, high=100)


def slope(points: Sequence[Sequence[float]]) -> float:
    """Of the straight line that fits points (x, y) best."""
    x, y = torch.tensor(points, dtype=torch.float64).unbind(dim=1)
    x = x - x.mean()
    return float((x * y).sum() / x.square().sum())


def _gap(pair: Mapping[str, str]) -> float:
    """By how much the chosen answer is worth more."""
    marks = answers_to(pair["prompt"])
    return marks[pair["chosen"]] - marks[pair["rejected"]]


def _sides(data: Any) -> tuple[list[float], list[float]]:
    """Margins of pairs whose label follows the worth, and of those whose label goes against it."""
    both = [*zip(data["margins"], data["gaps"], strict=True)]
    return [margin for margin, gap in both if gap > 0], [margin for margin, gap in both if gap < 0]


def _mass(given: Sequence[Tensor]) -> float:
    """The probability of all answers to a request, on average."""
    return float(torch.stack([logs.exp().sum() for logs in given]).mean())


def _shares(values: Sequence[float], low: float, high: float) -> list[tuple[float, float]]:
    """A histogram as (middle of the bin, percent)."""
    if not values:
        return [(low, 0.0), (high, 0.0)]
    wide = (high - low) / _BINS or 1.0
    counts = torch.histc(torch.tensor(values), bins=_BINS, min=low, max=high).tolist()
    return [(low + (place + 0.5) * wide, 100 * count / len(values)) for place, count in enumerate(counts)]


def _by_step(data: Any, say: Say, key: str, title: str, upright: Axis, times: float = 1.0) -> Canvas:
    """What the log tells of training's own pairs, and of those held out."""
    names = {key: say("training", "训练"), f"eval_{key}": say("held out", "留出")}
    curves = [
        Curve(name, [(step, times * value) for step, value in data["curves"][one]], look, True)
        for look, (one, name) in enumerate(names.items())
    ]
    return chart(title, curves, Axis(say("step", "步")), upright)


def _over_truth(title: str, data: Any, learned: str, say: Say) -> Canvas:
    points = data["by_worth"]
    ends = points[0][0], points[-1][0]
    truth = Curve(say("the worth itself", "价值本身"), [(end, end) for end in ends], 5, True)
    return chart(
        title,
        [Curve(learned, points, 0, True), truth],
        Axis(say("worth of the answer", "回答的价值")),
        Axis(say("above the request's mean", "高于该请求的平均")),
    )
