"""The data-quality report for fine-tuning sets: what is wrong in which row, and what the rows are like together.

Rows are looked at one at a time. Without a tokenizer only the text is; with one, each row is rendered and encoded as
training would have it.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from intaglio.data.examples import Example, MaskPolicy, encode_sample
from intaglio.data.formats import Sample, detect, to_sample
from intaglio.data.languages import language_namer
from intaglio.data.near_duplicates import NearDuplicates
from intaglio.data.readers import Row, Skipped
from intaglio.data.rendering_checks import check_ids, check_rendering, first_difference, template_notes
from intaglio.data.row_checks import Found, all_text, check_special_tokens, check_turns
from intaglio.data.turns import without_flag
from intaglio.errors import UserError
from intaglio.text.chat import ChatTemplate, render_chat
from intaglio.text.tokenizer import Tokenizer

__all__ = ["KEPT_IN_CLEAN_COPY", "PROBLEMS", "DataCheck", "Finding", "Report"]

PROBLEMS = {
    "unreadable": "cannot be read",
    "no format": "no format that we know",
    "role order": "roles in a strange order",
    "empty": "an empty turn or text",
    "repeated turn": "the same thing said twice",
    "duplicate": "exact duplicate of an earlier row",
    "near duplicate": "near-duplicate of an earlier row",
    "special token": "special tokens written in the text",
    "doubled token": "a special token twice in a row",
    "template": "not rendered as it stands",
    "too long": "longer than the context",
    "nothing to learn": "no supervised token",
}
"""Every problem a row may have, in words."""

KEPT_IN_CLEAN_COPY = frozenset({"near duplicate", "too long"})
"""Left to the user: rows of one task look alike by nature, and over-long rows are training's policy."""


@dataclass(frozen=True)
class Finding:
    """One thing wrong in one row."""

    problem: str
    where: str
    what: str


@dataclass
class Report:
    """What was found, and what the rows are like.

    Attributes:
        rows: rows read.
        formats: rows of each format.
        findings: in the order of the rows.
        notes: what concerns the whole set, or could not be looked for.
        languages_by: "language" or "script".
        languages: rows in each.
        unit: what lengths are in: "tokens" or "characters".
        lengths: of each row.
        supervised: tokens to be learned in all rows, None without a tokenizer.
        context: the most tokens a row may have, if known.
    """

    languages_by: str
    unit: str
    context: int | None = None
    rows: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    languages: Counter[str] = field(default_factory=Counter)
    lengths: list[int] = field(default_factory=list)
    supervised: int | None = None

    @property
    def rows_by_problem(self) -> dict[str, int]:
        """How many rows have each problem, in the order of `PROBLEMS`."""
        pairs = {(finding.problem, finding.where) for finding in self.findings}
        counts = Counter(problem for problem, _ in pairs)
        return {problem: counts[problem] for problem in PROBLEMS if counts[problem]}

    @property
    def supervised_share(self) -> float | None:
        """The part of all tokens that is learned."""
        total = sum(self.lengths)
        return None if self.supervised is None or not total else self.supervised / total


class DataCheck:
    """Looks at rows one by one; `report` has the sum.

    Args:
        tokenizer: the model's; without one, templates, lengths in tokens and masks are not looked at.
        template: for chats, instead of the tokenizer's own.
        context: the most tokens a row may have.
        first: some of the rows, to learn from what most have in common; it is no sign of a near-duplicate.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        template: ChatTemplate | None = None,
        context: int | None = None,
        first: Sequence[Row] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._policy = MaskPolicy(template=template)
        named, self._language_of = language_namer()
        self.report = Report(named, "characters" if tokenizer is None else "tokens", context)
        self._special = frozenset[str]()
        if tokenizer is not None:
            self.report.supervised = 0
            names = (tokenizer.token(i) for i in tokenizer.special_token_ids)
            self._special = frozenset(name for name in names if name)
        self._seen: dict[bytes, str] = {}
        self._near = NearDuplicates(sample=_texts(first))
        self._template_is_own = template is None
        self._notes: set[str] = set()

    def look(self, row: Row) -> list[Finding]:
        """What is wrong with this row, given those before it."""
        found = [Finding(problem, row.where, what) for problem, what in self._look(row)]
        self.report.rows += 1
        self.report.findings += found
        return found

    def skipped(self, skipped: Skipped) -> None:
        """Counts a row or file that could not be read."""
        self.report.findings.append(Finding("unreadable", skipped.where, skipped.reason))

    def _look(self, row: Row) -> list[Found]:
        try:
            format = detect(row)
            sample = to_sample(row, format)
        except UserError as error:
            reason = str(error).removeprefix(f"{row.where}: ")
            return [("no format", reason)]
        self.report.formats[format] += 1
        text = all_text(sample)
        if sample.kind != "tokens":
            self.report.languages[self._language_of(text)] += 1
        found = [*check_turns(sample), *self._duplicates(row, text), *check_special_tokens(sample, self._special)]
        if self._tokenizer is None:
            self.report.lengths.append(len(text))
            return found
        return found + self._encoded(sample, self._tokenizer)

    def _duplicates(self, row: Row, text: str) -> list[Found]:
        content = json.dumps(row.value, sort_keys=True, ensure_ascii=False, default=str)
        key = hashlib.blake2b(content.encode(), digest_size=16).digest()
        earlier = self._seen.setdefault(key, row.where)
        if earlier != row.where:
            return [("duplicate", f"is the row at {earlier} again")]
        near = self._near.add(text, row.where)
        return [("near duplicate", f"says nearly what the row at {near} says")] if near else []

    def _encoded(self, sample: Sample, tokenizer: Tokenizer) -> list[Found]:
        chat = sample.kind == "chat"
        if chat and self._policy.template is None and tokenizer.chat_template is None:
            self._note("the model has no chat template: chats were not rendered", sample.where)
            return []
        try:
            example = encode_sample(sample, tokenizer, self._policy)
            rendered = self._rendered(sample, tokenizer, self._policy.template) if chat else None
        except UserError as error:
            return [("template" if chat else "no format", str(error).removeprefix(f"{sample.where}: "))]
        self.report.lengths.append(len(example.ids))
        assert self.report.supervised is not None
        self.report.supervised += int(example.supervised.sum())
        found = list(check_ids(example, tokenizer, self.report.context))
        if rendered is not None:
            found += check_rendering(sample, rendered)
            self._note_template(sample, rendered, example, tokenizer)
        return found

    def _rendered(self, sample: Sample, tokenizer: Tokenizer, template: ChatTemplate | None) -> str:
        messages = [without_flag(message) for message in sample.messages]
        return render_chat(tokenizer, messages, tools=sample.tools, template=template).text

    def _note_template(self, sample: Sample, rendered: str, example: Example, tokenizer: Tokenizer) -> None:
        for what in template_notes(sample, rendered, example, tokenizer):
            self._note(what, sample.where)
        if self._template_is_own:
            return
        self._template_is_own = True  # one comparison is enough: a template is one for all rows
        try:
            own = self._rendered(sample, tokenizer, None)
        except UserError as error:
            self._note(f"the model's own template does not render this chat ({error.what})", sample.where)
            return
        if own != rendered:
            self._note(f"this is not the model's own template, {first_difference(rendered, own)}", sample.where)

    def _note(self, what: str, where: str) -> None:
        if what not in self._notes:
            self._notes.add(what)
            self.report.notes.append(f"{what} (first at {where})")


def _texts(rows: Sequence[Row]) -> Iterator[str]:
    """What each row says, if it says anything."""
    for row in rows:
        with suppress(UserError):
            yield all_text(to_sample(row, detect(row)))
