"""What a recipe measures beside its loss: answers and pairs before and after, yardsticks without a model, sampled code;
and a policy beside what it began as.

Results stand in `report.json` of the run; what was measured before training is kept there, so that a resumed run need
not measure it again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from intaglio.data.store import Store
from intaglio.files import read_json, write_json
from intaglio.models.decoder import Decoder
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.batching.data import located, sources_of
from intaglio.training.batching.preferences import paired_examples
from intaglio.training.measuring.answers import Answers, Exam, compare
from intaglio.training.measuring.closing import Texts, measure_code, yardsticks
from intaglio.training.measuring.pair_exam import PairExam, compare_pairs
from intaglio.training.objectives.preference_specs import KTOSpec
from intaglio.training.recipe import Recipe
from intaglio.training.stages.pages import report_lines

__all__ = ["Measures"]


class Measures:
    """The measures of one run.

    Args:
        recipe: says which.
        run: the run's folder.
        held_out: the examples that are not trained on.
        tokenizer: the run's.
        say: told the results.
    """

    def __init__(
        self, recipe: Recipe, run: Path, held_out: Store, tokenizer: Tokenizer, say: Callable[[str], None]
    ) -> None:
        self.recipe, self.file, self.tokenizer, self.say = recipe, run / "report.json", tokenizer, say
        source = located(sources_of(recipe)[0].path)
        wheres = [held_out[i].where for i in range(len(held_out))]
        self.exam = Exam(recipe.answers, source, wheres) if recipe.answers else None
        self.texts = Texts(source, wheres) if recipe.yardsticks or recipe.code else None
        room = 2 * recipe.max_length, recipe.packing
        compared = paired_examples(held_out) if isinstance(recipe.objective, KTOSpec) else held_out
        self.pairs = PairExam(recipe.pairs, compared, recipe.micro_batch, *room) if recipe.pairs else None

    @property
    def report(self) -> dict[str, Any]:
        """What was measured so far."""
        found: dict[str, Any] = read_json(self.file) if self.file.exists() else {}
        return found

    def before(self, model: Decoder, whole: nn.Module) -> None:
        """The untuned model's answers, without and with examples in the prompt; and its pairs.

        Args:
            model: writes text.
            whole: with the head that it may have.
        """
        if self.pairs is not None and "margins_before" not in self.report:
            self._keep({"margins_before": self.pairs.take(whole)})
        if self.exam is None or "untuned" in self.report:
            return
        taken = {"untuned": self.exam.take(model, self.tokenizer)}
        if self.exam.spec.shots:
            name = f"untuned, {self.exam.spec.shots} examples"
            taken[name] = self.exam.take(model, self.tokenizer, self.exam.spec.shots, self.recipe.seed)
        for name, answers in taken.items():
            self.say(f"{name}: exact match {answers.interval.mean:.1%}")
        self._keep({name: vars(answers) for name, answers in taken.items()})

    def after(self, model: Decoder, whole: nn.Module) -> None:
        """Everything that is measured on the trained model; see `before`."""
        if self.pairs is not None and (margins := self.pairs.take(whole)):
            before = self.report.get("margins_before")
            self._keep({"margins_after": margins, "pairs": compare_pairs(before, margins, self.say)})
        if self.exam is not None:
            tuned = self.exam.take(model, self.tokenizer)
            taken = {name: Answers(**found) for name, found in self.report.items() if name.startswith("untuned")}
            compared = compare(self.exam, {**taken, "tuned": tuned}, self.say)
            self._keep({"tuned": vars(tuned), "wanted": self.exam.wanted, "answers": compared})
        if self.texts is not None and self.recipe.yardsticks:
            self._keep({"yardsticks": yardsticks(self.texts, self.say)})
        if self.texts is not None and self.recipe.code:
            found = measure_code(self.recipe.code, model, self.tokenizer, self.texts, self.recipe.seed, self.say)
            self._keep({"code": found})

    def compared(self, report: dict[str, Any]) -> None:
        """Tells what a policy has become beside the model that it began as; see `SideBySide.report`."""
        for line in report_lines(report) if report else ():
            self.say(line)
        self._keep({"compare": report})

    def _keep(self, results: dict[str, Any]) -> None:
        write_json(self.file, {**self.report, **results})
