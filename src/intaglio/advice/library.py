"""What retrieval finds for the rows of a task: an index of the user's folder, or of what the rows themselves say."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from intaglio.advice.task import Case, Sides, TaskSpec
from intaglio.files import read_json, whole_directory, write_json
from intaglio.retrieval.embedder import Embedder
from intaglio.retrieval.index import Index
from intaglio.retrieval.indexing import index_folder
from intaglio.retrieval.search import Hit, Searcher

__all__ = ["Library"]


class Library:
    """The index of one task, made when the first road needs it.

    Args:
        task: says what there is to find.
        sides: the rows.
        folder: where documents and index are kept.
        embedder: makes the vectors; called once.

    Attributes:
        seconds: that making the index took, whenever that was.

    Raises:
        UserError: see `index_folder`.
    """

    def __init__(self, task: TaskSpec, sides: Sides, folder: Path, embedder: Callable[[], Embedder]) -> None:
        self._own = task.documents is None and task.document is None
        documents = Path(task.documents) if task.documents else folder / "documents"
        if not task.documents and not documents.exists():
            _write(documents, _texts(task, sides))
        model, noted = embedder(), folder / "index.json"
        before: float = read_json(noted)["seconds"] if noted.exists() else 0.0
        self.seconds = before + index_folder(documents, folder / "index", model).seconds
        write_json(noted, {"seconds": self.seconds})
        self._searcher = Searcher(Index.open(folder / "index"), model)

    def find(self, case: Case, passages: int) -> list[Hit]:
        """The best passages for a case; where solved examples are what is found, never its own solution."""
        hits = self._searcher.search(case.question, passages + self._own)
        return [hit for hit in hits if not (self._own and hit.chunk.file == _file(_solved(case)))][:passages]

    def close(self) -> None:
        """Lets go of the index."""
        self._searcher.index.close()


def _texts(task: TaskSpec, sides: Sides) -> Iterator[str]:
    if task.document is None:
        yield from map(_solved, sides.train)
    else:
        yield from (case.document or "" for case in (*sides.train, *sides.test))


def _solved(case: Case) -> str:
    return f"{case.question}\n{case.answer}"


def _write(folder: Path, texts: Iterator[str]) -> None:
    """A file for each text, called by its hash, so that equal ones are one."""
    with whole_directory(folder) as beside:
        for text in texts:
            (beside / _file(text)).write_text(text, encoding="utf-8")


def _file(text: str) -> str:
    return f"{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}.txt"
