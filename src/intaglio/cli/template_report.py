"""What `intaglio template check` looks at: a model directory, or data that a model is to learn from."""

from pathlib import Path

from intaglio.cli.tokenizing import chat_template, tokenizer_of
from intaglio.errors import UserError

__all__ = ["check_data", "check_model"]

_OF_TEMPLATES = (
    "template",
    "special token",
    "doubled token",
    "nothing to learn",
    "role order",
    "no format",
    "unreadable",
)
_SHOWN = 5  # rows of a problem

Checked = tuple[list[str], list[str]]
"""What does not fit, and what is worth knowing."""


def check_model(name: str) -> Checked:
    """Looks at a model's template, tokenizer, config and record.

    Raises:
        UserError: no such model, or no tokenizer.
    """
    from intaglio.lineage.resolve import resolve_spec
    from intaglio.text.base_or_instruct import read_applied
    from intaglio.text.template_checks import check_template

    tokenizer = tokenizer_of(name)
    try:
        rows = resolve_spec(name)[1].vocab_size
    except UserError:  # a GGUF file, or a tokenizer alone
        rows = None
    found = check_template(tokenizer, rows)
    if applied := read_applied(Path(name)):
        found.notes.append(f"{applied['template']} was put on by `intaglio template apply`: the weights do not know it")
    return found.problems, found.notes


def check_data(path: str, model: str, template: str | None) -> Checked:
    """Looks at what becomes of rows under a model's template, or another.

    Raises:
        UserError: no such model or template, or no rows.
    """
    from intaglio.data.check import PROBLEMS, DataCheck
    from intaglio.data.readers import read_rows

    tokenizer = tokenizer_of(model)
    check = DataCheck(tokenizer, None if template is None else chat_template(template, tokenizer))
    rows = read_rows(path, keep_going=True)
    for row in rows:
        check.look(row)
    for skipped in rows.skipped:
        check.skipped(skipped)
    report = check.report
    if not report.rows:
        raise UserError("there are no rows that can be read", where=path)
    problems = []
    for problem in _OF_TEMPLATES:
        found = [finding for finding in report.findings if finding.problem == problem]
        if found:
            shown = "; ".join(f"{finding.where}: {finding.what}" for finding in found[:_SHOWN])
            more = f"; and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
            problems.append(f"{PROBLEMS[problem]}: {shown}{more}")
    return [*report.notes, *problems], []
