"""A text to train small models on: documents of a data set up to a size, and a tokenizer learned from them.

FOLDER/
    text.jsonl      a document a row
    tokenizer/      a BPE
    RUN/            what was trained on them
"""

import shutil
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from intaglio.atlas.runs import run_recipe, write_rows
from intaglio.checkpoints.save import save_tokenizer
from intaglio.data.formats import detect, to_sample
from intaglio.data.readers import Row, read_rows
from intaglio.files import whole_directory
from intaglio.text.train import train_on
from intaglio.training.batching.data import located

__all__ = ["prepare_text", "train_on_text"]


def prepare_text(text: str, characters: int, vocab_size: int, folder: Path) -> dict[str, Any]:
    """Writes `text.jsonl`, a document a row, and `tokenizer`, a BPE of `vocab_size` learned from it.

    Rows that come from one file, as they do in `stdlib`, are one document, so that held-out ones are held out whole.

    Args:
        text: a data set's name, or a path.
        characters: of it that are used, from the front.
        vocab_size: of the tokenizer.
        folder: for both.

    Returns:
        `documents` and `characters`: how many there are.

    Raises:
        UserError: no such text, or not text; or too little for such a tokenizer.
    """
    documents = list(_documents(text, characters))
    write_rows(folder / "text.jsonl", ({"text": one} for one in documents))
    if not (folder / "tokenizer").exists():
        with whole_directory(folder / "tokenizer") as beside:
            save_tokenizer(train_on(documents, vocab_size, ["<|endoftext|>"]), beside)
    return {"documents": len(documents), "characters": sum(map(len, documents))}


def train_on_text(fields: dict[str, Any], rate: float, seed: int, run: Path) -> dict[str, Any]:
    """Trains by a recipe on the text that was prepared in the folder around `run`, on one thread.

    Returns:
        See `run_to_end`.

    Raises:
        KeyboardInterrupt: a signal ended it; what it did is saved, and the same call goes on.
        NotFinite: it diverged.
    """
    recipe = {
        "tokenizer": str(run.parent / "tokenizer"),
        "data": str(run.parent / "text.jsonl"),
        "validation": 0.05,
        "packing": "contiguous",
        "threads": 1,
        **fields,
    }
    told = run_recipe(recipe, rate, seed, run)
    shutil.rmtree(run / "checkpoints", ignore_errors=True)  # it is not gone on with
    return told


def _documents(text: str, characters: int) -> Iterator[str]:
    left = characters
    for _, rows in groupby(read_rows(located(text)), _source):
        if left <= 0:
            return
        document = "".join(to_sample(row, detect(row)).text or "" for row in rows)[:left]
        left -= len(document)
        yield document


def _source(row: Row) -> Any:
    """The file that a row was cut from, where it says so; else the row itself."""
    return row.value.get("file", row.where) if isinstance(row.value, dict) else row.where
