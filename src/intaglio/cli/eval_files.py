"""Perplexity and bits per byte of files: `intaglio eval MODEL --files FILE`."""

import hashlib
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from intaglio.errors import UserError

if TYPE_CHECKING:
    from intaglio.cli.eval_request import Asked
    from intaglio.evaluation.perplexity import Document, Perplexity, Sliding
    from intaglio.evaluation.results import Results
    from intaglio.evaluation.runs import Watch
    from intaglio.evaluation.subjects.subject import Subject

__all__ = ["measured_files"]

WINDOW: Final = 1024
"""Tokens at once where nobody says and the model can read so many."""


def measured_files(
    asked: "Asked",
    files: Sequence[str],
    window: int | None,
    stride: int | None,
    packed: bool,
    out: Path | None,
    watch: "Watch",
) -> "tuple[Results, Path]":
    """Measures the texts of each file, in the form of all results, and where they lie.

    Raises:
        UserError: a file cannot be read or holds no texts, the window does not fit, or the folder holds something else.
        SubjectGoneError: there is nobody to ask any more; what was measured is kept.
    """
    from intaglio.evaluation.perplexity import perplexity_result
    from intaglio.evaluation.results import Results, write_results
    from intaglio.evaluation.subjects.identity import versions
    from intaglio.fetch import claimed

    texts = {name: _documents(file, asked) for name, file in _named(files).items()}
    subject = asked.subject()
    sliding = _sliding(subject, window, stride, packed)
    settings: dict[str, Any] = {"window": sliding.window, "stride": sliding.stride, "packed": packed}
    settings |= {"limit": asked.limit, "seed": asked.seed}
    head = {"model": subject.identity(), "settings": settings}
    folder = out or Path("runs", _folder_name(subject, texts, sliding))
    with claimed(folder / ".lock"):
        _refuse_others(folder)
        found = {name: _measured(name, texts[name], sliding, subject, head, folder, watch) for name in texts}
        tasks = {name: perplexity_result(name, one, _file_of(texts[name])) for name, one in found.items()}
        units = {name: one.unit for name, one in found.items()}  # what the intervals are over
        results = Results(head["model"], {**settings, "units": units}, versions(), tasks)
        write_results(folder, results)
    return results, folder


def _measured(
    name: str,
    documents: "Sequence[Document]",
    sliding: "Sliding",
    subject: "Subject",
    head: dict[str, Any],
    folder: Path,
    watch: "Watch",
) -> "Perplexity":
    from intaglio.evaluation.journal import Journal
    from intaglio.evaluation.perplexity import measure_perplexity, texts_hash

    begun = json.loads(json.dumps({**head, "texts": texts_hash(documents, sliding)}))
    journal = Journal(_journal(folder, name), begun)
    found = measure_perplexity(subject, documents, sliding, journal, lambda done, total: watch(name, done, total))
    _, tokens, size = found.total
    units = f"{len(found.parts)} {found.unit}{'s' * (len(found.parts) != 1)}"
    print(f"{name}: {units}, {tokens} tokens, {size} bytes; intervals are over {found.unit}s", file=sys.stderr)
    return found


def _file_of(documents: "Sequence[Document]") -> str:
    return documents[0].where.rpartition(":")[0] or documents[0].where


def _journal(folder: Path, name: str) -> Path:
    return folder / f"windows-{hashlib.sha256(name.encode()).hexdigest()[:8]}.jsonl"


def _refuse_others(folder: Path) -> None:
    """Results of tasks are not written over; those of files have their windows beside them."""
    if (folder / "results.json").exists() and not any(folder.glob("windows-*.jsonl")):
        raise UserError("holds another evaluation", where=str(folder), mend="give another --out")


def _named(files: Sequence[str]) -> dict[str, str]:
    """By the last part of the path, or by all of it where that is another's too."""
    ends = [Path(file).name for file in files]
    if len(set(files)) < len(files):
        raise UserError("a file is named twice", where="--files")
    return {end if ends.count(end) == 1 else file: file for end, file in zip(ends, files, strict=True)}


def _documents(file: str, asked: "Asked") -> "list[Document]":
    found = [*_read(file)]
    if not found:
        raise UserError("holds no text", where=file)
    if asked.limit is None or asked.limit >= len(found):
        return found
    chosen = sorted(random.Random(f"documents {asked.seed}").sample(range(len(found)), asked.limit))
    return [found[place] for place in chosen]


def _read(file: str) -> "Iterator[Document]":
    from intaglio.data.readers import read_rows
    from intaglio.evaluation.perplexity import Document

    for row in read_rows(file):
        text = row.value if isinstance(row.value, str) else row.value.get("text")
        if not isinstance(text, str):
            raise UserError("has no text", where=row.where, mend="give texts, or rows with `text`")
        if text:
            yield Document(text, row.where)


def _sliding(subject: "Subject", window: int | None, stride: int | None, packed: bool) -> "Sliding":
    from intaglio.evaluation.perplexity import Sliding

    most = subject.context
    chosen = window or min(WINDOW, most or WINDOW)
    if most and chosen > most:
        raise UserError(f"{chosen} tokens, and the model reads {most}", where="--window")
    return Sliding(chosen, stride or max(chosen // 2, 1), packed)


def _folder_name(subject: "Subject", texts: "dict[str, list[Document]]", sliding: "Sliding") -> str:
    from intaglio.evaluation.perplexity import texts_hash

    told = [subject.identity(), *(texts_hash(documents, sliding) for documents in texts.values())]
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    return f"eval-{subject.name.replace('/', '-')}-{digest[:8]}"
