"""Answers before and after a training: held-out conversations or pairs, what ends them generated and compared.

The prompt is rendered by the same call that made the training examples, and the same pattern reads every answer, so
that a gain is the weights' and nobody else's.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, field_validator

from intaglio.data.formats import Sample, detect, to_sample
from intaglio.data.readers import read_rows
from intaglio.evaluation.intervals import Interval, bootstrap_mean, paired_difference
from intaglio.evaluation.metrics import exact_match
from intaglio.evaluation.translation import Tokenize, translation_scores
from intaglio.specs import Spec
from intaglio.text.chat import render_chat
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.rollout import answer_prompts

__all__ = ["Answers", "AnswersSpec", "Exam", "compare"]

Message = dict[str, Any]


class AnswersSpec(Spec):
    """How held-out answers are read.

    Attributes:
        rows: held-out conversations, or pairs, that are asked.
        pattern: its first group is the answer, in what is generated and in the reference alike; by default, all of it.
        max_tokens: of an answer.
        shots: examples of the training side put before the question as earlier turns, for the untuned model.
        batch: questions that are answered together.
        bleu: score them with BLEU and chrF too, BLEU's words told apart in this way (see `translation_scores`).
    """

    rows: int = Field(500, gt=0)
    pattern: str = r"([\s\S]*)"
    max_tokens: int = Field(16, gt=0)
    shots: int = Field(0, ge=0)
    batch: int = Field(25, gt=0)
    bleu: Tokenize | None = None

    @field_validator("pattern")
    @classmethod
    def _one_group(cls, value: str) -> str:
        if re.compile(value).groups < 1:
            raise ValueError(f"{value!r} has no group that is the answer")
        return value


@dataclass(frozen=True)
class Answers:
    """What a model said.

    Attributes:
        texts: as generated.
        correct: (n,) whether the extracted answer is the reference's.
    """

    texts: list[str]
    correct: list[bool]

    @property
    def interval(self) -> Interval:
        """Exact match, with its 95 % interval."""
        return bootstrap_mean(self.correct)


class Exam:
    """Held-out questions of one run.

    Args:
        spec: how answers are read.
        source: the rows' file, folder or glob.
        held_out: places of the rows that are not trained on.
    """

    def __init__(self, spec: AnswersSpec, source: Any, held_out: Sequence[str]) -> None:
        self.spec = spec
        outside = set(held_out)
        rows = [to_sample(row, detect(row)) for row in read_rows(source)]
        asked = [sample for sample in rows if sample.kind in ("chat", "completion")]
        self.questions = [sample for sample in asked if sample.where in outside][: spec.rows]
        self.examples = [sample for sample in asked if sample.where not in outside and sample.kind == "chat"]

    @property
    def references(self) -> list[str]:
        """The answers that are right."""
        return [self._extract(text) for text in self.wanted]

    @property
    def wanted(self) -> list[str]:
        """What the rows themselves answer."""
        return [_answer(sample) for sample in self.questions]

    def most_frequent(self) -> float:
        """Exact match of always giving the commonest answer."""
        found = self.references
        return max(map(found.count, set(found))) / len(found)

    def take(self, model: Any, tokenizer: Tokenizer, shots: int = 0, seed: int = 0) -> Answers:
        """Greedy answers to every question, `shots` examples first."""
        before = [m for sample in random.Random(seed).sample(self.examples, shots) for m in _turns(sample)]
        prompts = [_prompt(tokenizer, sample, before) for sample in self.questions]
        texts = answer_prompts(model, tokenizer, prompts, self.spec.max_tokens, self.spec.batch)
        found = exact_match([self._extract(text) for text in texts], self.references)
        return Answers(texts, found.tolist())

    def _extract(self, text: str) -> str:
        match = re.fullmatch(self.spec.pattern, text.strip())
        return match[1] if match else ""


def _turns(sample: Sample) -> list[Message]:
    return [{"role": m["role"], "content": m["content"]} for m in sample.messages]


def _answer(sample: Sample) -> str:
    return sample.completion if isinstance(sample.completion, str) else str(sample.messages[-1]["content"])


def _prompt(tokenizer: Tokenizer, sample: Sample, before: Sequence[Message]) -> list[int]:
    if isinstance(sample.prompt, str):
        return tokenizer.encode(sample.prompt)
    return render_chat(tokenizer, [*before, *_turns(sample)[:-1]], add_generation_prompt=True).ids


def compare(exam: Exam, taken: dict[str, Answers], say: Callable[[str], None]) -> dict[str, Any]:
    """Prints every model's exact match with its interval, and the last one's gain over each; returns it as data."""
    *others, last = taken
    report: dict[str, Any] = {"rows": len(exam.questions), "most_frequent": exam.most_frequent()}
    say(f"exact match on {len(exam.questions)} held-out questions (the commonest answer: {exam.most_frequent():.1%})")
    for name, answers in taken.items():
        mean, low, high = answers.interval
        report[name] = {"exact_match": mean, "low": low, "high": high}
        say(f"  {name:24} {mean:6.1%}  [{low:.1%}, {high:.1%}]")
        if exam.spec.bleu:
            report[name] |= _translated(exam, answers, exam.spec.bleu, say)
    for name in others:
        mean, low, high = paired_difference(taken[last].correct, taken[name].correct)
        report[f"{last} over {name}"] = {"difference": mean, "low": low, "high": high}
        say(f"  {last} over {name}: {mean:+.1%}  [{low:+.1%}, {high:+.1%}]")
    return report


def _translated(exam: Exam, answers: Answers, tokenize: Tokenize, say: Callable[[str], None]) -> dict[str, Any]:
    scores = translation_scores(answers.texts, exam.wanted, tokenize)
    for name, (mean, low, high) in scores.items():
        say(f"  {name:24} {mean:6.1f}  [{low:.1f}, {high:.1f}]")
    return {name: score._asdict() for name, score in scores.items()}
