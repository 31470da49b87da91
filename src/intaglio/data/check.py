"""The data-quality report for sets to learn from: what is wrong in which row, and what the rows are like together.

Rows are looked at one at a time. Without a tokenizer only the text is; with one, each row is rendered and encoded as
training would have it.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from intaglio.data.examples import Example, MaskPolicy
from intaglio.data.formats import Format, Sample, detect
from intaglio.data.languages import language_namer
from intaglio.data.near_duplicates import NearDuplicates
from intaglio.data.preferences import words_of
from intaglio.data.readers import Row, Skipped
from intaglio.data.rendering_checks import check_ids, check_learned, check_rendering, first_difference, template_notes
from intaglio.data.row_checks import (
    Found,
    all_text,
    check_answers,
    check_last_word,
    check_special_tokens,
    check_turns,
    merged,
)
from intaglio.data.row_parts import RowParts, encode_parts, parts_of
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
    "same answer": "nothing to choose between",
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
        lengths: of each row; of one that compares answers, its prompt with the longest of them.
        tokens: in all rows, a prompt counted with each of its answers; None without a tokenizer.
        supervised: those of them that are to be learned.
        context: the most tokens a row may have, if known.
        pairs: of a better and a worse answer in all rows.
        longer_wins: the pairs of which the better answer has more characters.
        judged: answers that were "wanted" and "unwanted".
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
    tokens: int | None = None
    supervised: int | None = None
    pairs: int = 0
    longer_wins: int = 0
    judged: Counter[str] = field(default_factory=Counter)

    @property
    def rows_by_problem(self) -> dict[str, int]:
        """How many rows have each problem, in the order of `PROBLEMS`."""
        pairs = {(finding.problem, finding.where) for finding in self.findings}
        counts = Counter(problem for problem, _ in pairs)
        return {problem: counts[problem] for problem in PROBLEMS if counts[problem]}

    @property
    def supervised_share(self) -> float | None:
        """The part of all tokens that is learned."""
        return None if self.supervised is None or not self.tokens else self.supervised / self.tokens

    @property
    def longer_share(self) -> float | None:
        """The part of the pairs of which the better answer is the longer one; None without pairs."""
        return self.longer_wins / self.pairs if self.pairs else None


class DataCheck:
    """Looks at rows one by one; `report` has the sum.

    Args:
        tokenizer: the model's; without one, templates, lengths in tokens and masks are not looked at.
        template: for chats, instead of the tokenizer's own.
        context: the most tokens a row may have.
        first: some of the rows, to learn from what most have in common; it is no sign of a near-duplicate.
        format: of every row; None: each row's own, as `detect` finds it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        template: ChatTemplate | None = None,
        context: int | None = None,
        first: Sequence[Row] = (),
        format: Format | None = None,
    ) -> None:
        self._format = format
        self._tokenizer = tokenizer
        self._policy = MaskPolicy(template=template)
        named, self._language_of = language_namer()
        self.report = Report(named, "characters" if tokenizer is None else "tokens", context)
        self._special = frozenset[str]()
        if tokenizer is not None:
            self.report.tokens = self.report.supervised = 0
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
            format = self._format or detect(row)
            parts = parts_of(row, format)
        except UserError as error:
            reason = str(error).removeprefix(f"{row.where}: ")
            return [("no format", reason)]
        self.report.formats[format] += 1
        self._count_opinions(parts)
        if format is not Format.TOKENS:
            self.report.languages[self._language_of(parts.text)] += 1
        found = [*self._said(parts), *self._duplicates(row, parts.text)]
        if self._tokenizer is None:
            self.report.lengths.append(max(len(all_text(sample)) for sample in parts.samples.values()))
            return found
        return found + self._encoded(parts, self._tokenizer)

    def _said(self, parts: RowParts) -> Iterator[Found]:
        """What the text alone shows."""
        found = {}
        for name, sample in parts.samples.items():
            ends = check_last_word(sample) if parts.answered else ()
            found[name] = [*check_turns(sample), *ends, *check_special_tokens(sample, self._special)]
        yield from merged(found)
        if parts.compared:
            yield from check_answers(parts.samples)

    def _count_opinions(self, parts: RowParts) -> None:
        if parts.label is not None:
            self.report.judged["wanted" if parts.label else "unwanted"] += 1
        self.report.pairs += len(parts.pairs)
        self.report.longer_wins += sum(len(words_of(p.chosen)) > len(words_of(p.rejected)) for p in parts.pairs)

    def _duplicates(self, row: Row, text: str) -> list[Found]:
        content = json.dumps(row.value, sort_keys=True, ensure_ascii=False, default=str)
        key = hashlib.blake2b(content.encode(), digest_size=16).digest()
        earlier = self._seen.setdefault(key, row.where)
        if earlier != row.where:
            return [("duplicate", f"is the row at {earlier} again")]
        near = self._near.add(text, row.where)
        return [("near duplicate", f"says nearly what the row at {near} says")] if near else []

    def _encoded(self, parts: RowParts, tokenizer: Tokenizer) -> list[Found]:
        chats = {name: sample for name, sample in parts.samples.items() if sample.kind == "chat"}
        where = next(iter(parts.samples.values())).where
        if chats and self._policy.template is None and tokenizer.chat_template is None:
            self._note("the model has no chat template: chats were not rendered", where)
            return []
        try:
            examples = encode_parts(parts, tokenizer, self._policy)
            rendered = {name: self._rendered(one, tokenizer, self._policy.template) for name, one in chats.items()}
        except UserError as error:
            return [("template" if chats else "no format", str(error).removeprefix(f"{where}: "))]
        self._count_tokens(examples)
        found: dict[str, list[Found]] = {}
        for (name, sample), example in zip(parts.samples.items(), examples, strict=True):
            learned = check_learned(example) if parts.answered else ()
            found[name] = [*check_ids(example, tokenizer, self.report.context), *learned]
            if name in rendered:
                found[name] += check_rendering(sample, rendered[name])
                self._note_template(sample, rendered[name], example, tokenizer)
        return list(merged(found))

    def _count_tokens(self, examples: Sequence[Example]) -> None:
        assert self.report.tokens is not None
        assert self.report.supervised is not None
        lengths = [len(example.ids) for example in examples]
        self.report.lengths.append(max(lengths))
        self.report.tokens += sum(lengths)
        self.report.supervised += sum(int(example.supervised.sum()) for example in examples)

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
            yield parts_of(row, detect(row)).text
