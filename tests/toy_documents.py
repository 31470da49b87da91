"""A small index of made-up documents, with an embedder that needs no model."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from intaglio.retrieval.index import Chunk, FileState, Index, Settings
from intaglio.retrieval.search import Searcher
from intaglio.retrieval.words import words

__all__ = ["DOCUMENTS", "ToyEmbedder", "put", "toy_searcher"]

DOCUMENTS = {
    "boats.md": ["The ferry to the island leaves at nine.", "Row boats are let by the hour for six crowns."],
    "rooms.md": ["Breakfast is served in the garden until ten.", "A room with a view of the lake costs ninety crowns."],
    "dogs.md": ["Dogs sleep in the kennel behind the barn.", "The vet comes on Tuesdays."],
}


class ToyEmbedder:
    """Texts with the same words are near: each word has a direction of its own."""

    name = "toy"
    dimension = 256

    def embed(self, texts: Sequence[str], *, query: bool) -> np.ndarray:
        """See `Embedder`."""
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            for word in words(text):
                vector[int(hashlib.sha256(word.encode()).hexdigest(), 16) % self.dimension] += 1
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def toy_searcher(folder: Path, documents: Mapping[str, Sequence[str]] = DOCUMENTS) -> Searcher:
    """Writes each document, a passage a line, into `folder/documents`, and an index of them beside."""
    source = folder / "documents"
    source.mkdir()
    index = Index.create(folder / "index", Settings(str(source), "toy", ToyEmbedder.dimension, 100))
    for file, passages in documents.items():
        put(index, file, passages)
    return Searcher(index, ToyEmbedder())


def put(index: Index, file: str, passages: Sequence[str]) -> None:
    """Writes a document, a passage a line, and takes it into the index."""
    path = Path(index.settings.folder) / file
    path.write_text("\n".join(passages) + "\n")
    state = path.stat()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    chunks = [
        Chunk(f"{file}-{line}", text, file, line, line, Path(file).stem.title())
        for line, text in enumerate(passages, 1)
    ]
    vectors = ToyEmbedder().embed([chunk.passage for chunk in chunks], query=False)
    index.put(FileState(file, state.st_size, state.st_mtime_ns, digest), chunks, vectors)
