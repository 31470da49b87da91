"""A rollout is made: the policy answers, the answers are scored, and read again by policy, reference and critic.

The engine and the trainer read the same weights, so they must find the same log-probabilities; how far apart they are
is measured in every rollout, and beyond a tolerance the run ends: what was drawn would not be what is learned.

Legend: n tokens of all answers, D answers.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from intaglio.data.preference_encoding import PromptExample
from intaglio.errors import UserError
from intaglio.models.heads import decoder_of
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.objectives.actions import Actions, Reader
from intaglio.training.processes.ranks import ALONE, Ranks
from intaglio.training.rl.judging import Judge, Verdict
from intaglio.training.rl.rewards import Rewards
from intaglio.training.rl.rollouts import Rollout, RolloutBatch, batch_of, flat_rollout, joined_rollouts
from intaglio.training.rollout import Answer, Drawing, drawn_answers

__all__ = ["TOLERANCES", "Collector", "Reference", "told_of_answers"]

TOLERANCES = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.1}
"""Nats of a token by which engine and trainer may differ on average: several times what rounding makes of the same
weights (SmolLM2 in bf16: 0.04 on average, 0.6 at most), and less than other weights do. Single tokens may be far apart
in bf16, the unlikely ones, so that the largest difference is told and decides nothing."""

Reference = Callable[[RolloutBatch], Tensor]
"""The log-probabilities (n,) of a micro-batch under a policy that stays."""


class Collector:
    """Makes rollouts.

    Args:
        tokenizer: the policy's.
        rewards: what answers are judged by.
        reader: reads them as the objective does.
        judge: makes advantages.
        drawing: how answers are drawn.
        micro_batch: answers that are read together.
        tolerance: see `TOLERANCES`; None takes that of the model's dtype.
        ranks: that share the prompts of a rollout; all of them get all of it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        rewards: Rewards,
        reader: Reader,
        judge: Judge,
        drawing: Drawing,
        *,
        micro_batch: int = 4,
        tolerance: float | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.tokenizer, self.rewards, self.reader = tokenizer, rewards, reader
        self.judge, self.drawing = judge, drawing
        self.micro_batch, self.tolerance, self.ranks = micro_batch, tolerance, ranks

    def collect(
        self, model: Any, reference: Reference | None, prompts: Sequence[PromptExample], group: int, seed: int
    ) -> tuple[Rollout, dict[str, float]]:
        """`group` answers to each prompt, with all that is learned from them, and what is logged.

        Args:
            model: the policy, with its critic if it has one.
            reference: None where nothing is compared with one.
            prompts: each is answered `group` times.
            group: answers to one prompt.
            seed: of this rollout; every answer draws from its own.

        Raises:
            UserError: a reward function fails, or engine and trainer are too far apart.
        """
        start = time.perf_counter()
        mine, first = self._mine(prompts)
        with self.ranks.whole(model) as policy:
            ids, decoder = [prompt.prompt.tolist() for prompt in mine], decoder_of(policy)
            drawn = drawn_answers(decoder, self.tokenizer, ids, self.drawing, group, seed + first)
            dtype = decoder.embed_tokens.weight.dtype
        generated = time.perf_counter()
        answers = [answer for row in drawn for answer in row]
        each_prompt = [prompt for prompt in mine for _ in range(group)]
        verdict = self._verdict(each_prompt, answers)
        scored = time.perf_counter()
        rollout, plain = self._read(model, reference, _flat(each_prompt, answers))
        share = _joined(self.ranks.gather(_Share(rollout, answers, verdict, plain)))
        told = self._difference(dtype, share)
        rollout, of_judge = self.judge(share.rollout, share.verdict)
        seconds = {"generate": generated - start, "reward": scored - generated, "read": time.perf_counter() - scored}
        told |= told_of_answers(share.answers, share.verdict) | of_judge
        told |= {f"rollout/{name}_seconds": round(value, 3) for name, value in seconds.items()}
        told["rollout/tokens_per_second"] = round(sum(rollout.lengths) / max(seconds["generate"], 1e-9), 1)
        return rollout, told

    def _mine(self, prompts: Sequence[PromptExample]) -> tuple[Sequence[PromptExample], int]:
        """The prompts that this rank answers, and the number of the first."""
        count, rest = divmod(len(prompts), self.ranks.count)
        assert not rest, "every rank answers equally many"
        first = count * self.ranks.number
        return prompts[first : first + count], first

    def _verdict(self, prompts: Sequence[PromptExample], answers: Sequence[Answer]) -> Verdict:
        scores, each = self.rewards(prompts, answers)
        return Verdict(scores, each, torch.tensor([answer.ended for answer in answers]))

    @torch.no_grad()
    def _read(self, model: Any, reference: Reference | None, rollout: Rollout) -> tuple[Rollout, Tensor]:
        """What policy, critic and reference say of the answers, as the objective will read them; and the
        log-probabilities (n,) at temperature 1.
        """
        training, device = model.training, self.ranks.device(model)
        model.eval()
        found: list[Actions] = []
        compared: list[Tensor] = []
        for start in range(0, len(rollout), self.micro_batch):
            batch = batch_of(rollout, range(start, min(start + self.micro_batch, len(rollout)))).to(device)
            found.append(self.reader(model, batch, plain=True))
            if reference is not None:
                compared.append(reference(batch).cpu())
        model.train(training)
        read = replace(
            rollout,
            log_probs=torch.cat([one.log_probs for one in found]).cpu(),
            values=torch.cat([one.values for one in found]).cpu(),
            reference=torch.cat(compared) if compared else rollout.reference,
        )
        return read, torch.cat([one.plain for one in found]).cpu()

    def _difference(self, dtype: torch.dtype, share: "_Share") -> dict[str, float]:
        """How far engine and trainer are apart, under TRL's names.

        Raises:
            UserError: too far.
        """
        engine = torch.tensor([log_prob for answer in share.answers for log_prob in answer.log_probs])
        apart = (share.plain - engine).abs()
        worst = int(apart.argmax())
        mean, tolerance = float(apart.mean()), self.tolerance or TOLERANCES[dtype]
        if not mean <= tolerance:
            owner = int((share.rollout.answer_lengths.cumsum(dim=0) <= worst).sum())
            what = f"the engine's log-probabilities are {mean:.3g} off the trainer's on average"
            mend = f"more than {tolerance:g} is no rounding: tell us; `objective.tolerance` lets the run go on"
            raise UserError(what, where=share.rollout.wheres[owner], mend=mend)
        return {
            "sampling/sampling_logp_difference/mean": mean,
            "sampling/sampling_logp_difference/max": float(apart[worst]),
        }


@dataclass(frozen=True)
class _Share:
    """What a rank made of its prompts, or all ranks of all of them.

    Attributes:
        rollout: read, not yet judged.
        answers: D of them.
        verdict: on these.
        plain: (n,) the trainer's log-probabilities at temperature 1.
    """

    rollout: Rollout
    answers: list[Answer]
    verdict: Verdict
    plain: Tensor


def _flat(prompts: Sequence[PromptExample], answers: Sequence[Answer]) -> Rollout:
    ids = [prompt.prompt.tolist() for prompt in prompts]
    return flat_rollout(ids, [answer.ids for answer in answers], [prompt.where for prompt in prompts])


def _joined(shares: Sequence[_Share]) -> _Share:
    """In the order of the prompts."""
    if len(shares) == 1:
        return shares[0]
    verdicts = [share.verdict for share in shares]
    verdict = Verdict(
        torch.cat([one.scores for one in verdicts]),
        {name: torch.cat([one.each[name] for one in verdicts]) for name in verdicts[0].each},
        torch.cat([one.ended for one in verdicts]),
    )
    rollout = joined_rollouts([share.rollout for share in shares])
    answers = [answer for share in shares for answer in share.answers]
    return _Share(rollout, answers, verdict, torch.cat([share.plain for share in shares]))


def told_of_answers(answers: Sequence[Answer], verdict: Verdict) -> dict[str, float]:
    """What is logged of answers and their rewards; TRL's names. What there is nothing of is left out."""
    lengths = torch.tensor([float(len(answer.ids)) for answer in answers])
    told = {
        "reward": _mean(verdict.scores),
        "reward_std": _spread(verdict.scores),
        "completions/mean_length": float(lengths.mean()),
        "completions/min_length": float(lengths.min()),
        "completions/max_length": float(lengths.max()),
        "completions/clipped_ratio": float((~verdict.ended).float().mean()),
        "completions/mean_terminated_length": _mean(lengths[verdict.ended]),
    }
    for name, values in verdict.each.items():
        told |= {f"rewards/{name}/mean": _mean(values), f"rewards/{name}/std": _spread(values)}
    return {name: value for name, value in told.items() if value is not None}


def _mean(values: Tensor) -> float | None:
    known = values[values.isfinite()]
    return float(known.mean()) if len(known) else None


def _spread(values: Tensor) -> float | None:
    known = values[values.isfinite()]
    return float(known.std()) if len(known) > 1 else None
