"""PPO's reward against how far the policy went for it, for several weights of the divergence, beside the best there is.

Of all policies at one divergence from the start the best is pi_ref(y) exp(r(y) / beta) / Z (Ziegler et al. 2019;
Rafailov et al. 2023, equation 4); where the answers can be counted, as here, the whole curve can be computed.

Legend: A answers to a request.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from intaglio.atlas import requests
from intaglio.atlas.charts import Axis, Curve, chart
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.requests import LEAST, answers_to
from intaglio.atlas.small_alignment import Aligned, curve, log_probs, open_policy, some_prompts
from intaglio.atlas.svg import Canvas

__all__ = ["RewardAgainstKL", "best_at"]

_ASKED: Final = 12  # requests whose answers are all looked at
_LONGEST: Final = 12  # tokens of an answer
_BETAS: Final = [0.05 * 1.6**power for power in range(11)]


@dataclass(frozen=True)
class RewardAgainstKL(Figure):
    """See above.

    Attributes:
        width: of the models.
        rows: of demonstrations, and of requests.
        batch: answers of a step.
        base_steps, steps: of the model, and of PPO that begins at it.
        rate: of the latter's learning.
        weights: of the divergence among the rewards, a run each.
    """

    name: ClassVar[str] = "ppo-kl"
    title: ClassVar[Words] = Words("PPO: reward against KL", "PPO：奖励与 KL")
    claim: ClassVar[Words] = Words(
        "PPO maximises E[r] - beta KL(pi || pi_ref): reward is bought with divergence from where the policy began, and "
        "beta is the price.",
        "PPO 最大化 E[r] - beta KL(pi || pi_ref)：奖励以偏离起点为代价，beta 就是价格。",
    )
    width: int = 32
    rows: int = 1500
    batch: int = 32
    base_steps: int = 180
    steps: int = 100
    rate: float = 1e-3
    weights: tuple[float, ...] = (0.05, 0.5, 2.0)

    def data(self) -> Any:
        with tempfile.TemporaryDirectory() as scratch:
            runs = Aligned(Path(scratch), self.width, self.rows, self.batch)
            start = self._read(runs.base(self.base_steps))
            logs = {f"{weight:g}": runs.from_rewards(f"ppo-{weight:g}", *self._way(weight)) for weight in self.weights}
            ends = {weight: self._read(Path(scratch) / f"ppo-{weight}" / "model") for weight in logs}
        names = ("objective/kl", "objective/scores")
        return {
            "start": _where(start, start),
            "curves": {weight: {name: curve(lines, name, 10) for name in names} for weight, lines in logs.items()},
            "ends": {weight: _where(end, start) for weight, end in ends.items()},
            "best": [_where(best_at(start, beta), start) for beta in _BETAS],
            "aims": {weight: _where(best_at(start, float(weight)), start) for weight in logs},
        }

    def _way(self, weight: float) -> tuple[int, float, dict[str, Any]]:
        objective = {
            "kind": "ppo",
            "rewards": [{"function": f"{requests.__file__}:worth"}],
            "max_completion_length": _LONGEST,
            "temperature": 1.0,
            "num_ppo_epochs": 2,
            "kl_coef": weight,
        }
        return self.steps, self.rate, objective

    def _read(self, path: Path) -> Tensor:
        model, tokenizer = open_policy(path)
        return torch.stack([_with_the_rest(log_probs(model, tokenizer, prompt)) for prompt in some_prompts(_ASKED)])

    def caption(self, data: Any) -> Words:
        least, most = (f"{weight:g}" for weight in (min(self.weights), max(self.weights)))
        ends, aims, start = data["ends"], data["aims"], data["start"][1]
        return Words(
            f"{self.steps} steps of {self.batch} answers of a model {self.width} wide; the reward is a function. A path"
            f" is a run from its beginning (reward {start:.2f}, no divergence). With beta {least} it ends at a reward o"
            f"f {ends[least][1]:.2f} for {ends[least][0]:.2f} nats, with beta {most} at {ends[most][1]:.2f} for "
            f"{ends[most][0]:.2f}; the best at these prices would be {aims[least][1]:.2f} for {aims[least][0]:.2f} and "
            f"{aims[most][1]:.2f} for {aims[most][0]:.2f}. No policy lies above the curve of the best, which is compute"
            "d from all answers; the points of a run are means over few of them. One seed.",
            f"{self.steps} 步、每步 {self.batch} 个回答，模型宽 {self.width}，奖励是一个函数。一条路径是一次运行，从起"
            f"点（奖励 {start:.2f}，偏离为零）开始。beta 为 {least} 时止于奖励 {ends[least][1]:.2f}、"
            f"{ends[least][0]:.2f} nat，beta 为 {most} 时止于 {ends[most][1]:.2f}、{ends[most][0]:.2f} nat；在这两个价"
            f"格下最优分别是 {aims[least][1]:.2f}（{aims[least][0]:.2f} nat）与 {aims[most][1]:.2f}"
            f"（{aims[most][0]:.2f} nat）。最优曲线由全部回答算出，没有策略在它之上；运行中的点只是少数回答的平均。单个"
            "种子。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        runs = data["curves"]
        paths = [
            Curve(f"beta {weight}", [*_path(told), data["ends"][weight]], look, True)
            for look, (weight, told) in enumerate(runs.items())
        ]
        best = Curve(say("the best there is", "可能的最优"), [data["start"], *reversed(data["best"])], 5, True)
        step, reward = Axis(say("step", "步")), say("reward", "奖励")
        kl = say("KL, nats an answer", "KL（nat/回答）")
        return [
            chart(say("Reward against KL", "奖励与 KL"), [*paths, best], Axis(kl, low=0), Axis(reward), width=480),
            chart(say("Reward by step", "各步的奖励"), _steps(runs, "objective/scores"), step, Axis(reward)),
            chart(say("KL by step", "各步的 KL"), _steps(runs, "objective/kl"), step, Axis(kl)),
        ]


def best_at(start: Tensor, beta: float) -> Tensor:
    """The log-probabilities that maximise E[worth] - beta KL, from those of the start; both (requests, A + 1)."""
    return (start + _worths() / beta).log_softmax(dim=-1)


def _with_the_rest(logs: Tensor) -> Tensor:
    """(A,) -> (A + 1,): the last is of all that is no answer."""
    return torch.cat([logs, torch.log1p(-logs.exp().sum().clamp(max=1 - 1e-6))[None]]).log_softmax(dim=-1)


def _worths() -> Tensor:
    """(requests, A + 1)"""
    return torch.tensor([[*answers_to(prompt).values(), LEAST] for prompt in some_prompts(_ASKED)])


def _where(policy: Tensor, start: Tensor) -> list[float]:
    """KL from the start in nats, and reward, of log-probabilities (requests, A + 1), on average."""
    kl = (policy.exp() * (policy - start)).sum(dim=-1).mean()
    return [max(float(kl), 0.0), float((policy.exp() * _worths()).sum(dim=-1).mean())]


def _path(told: Any) -> list[tuple[float, float]]:
    return [(kl, score) for (_, kl), (_, score) in zip(told["objective/kl"], told["objective/scores"], strict=True)]


def _steps(runs: Any, name: str) -> list[Curve]:
    return [Curve(f"beta {weight}", told[name], look, True) for look, (weight, told) in enumerate(runs.items())]
