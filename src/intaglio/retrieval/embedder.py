"""What turns a text into a vector, so that near meanings are near vectors."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from intaglio.checkpoints.pull import pull
from intaglio.data.unpacking import needs

__all__ = ["DEFAULT_EMBEDDER", "Embedder", "load_embedder"]

DEFAULT_EMBEDDER: Final = "all-minilm-l6-v2"


class Embedder(Protocol):
    """A model of sentences.

    Attributes:
        name: what it was asked for by: a name of the catalogue, a directory or a hub id; an index remembers it.
        dimension: D.
    """

    name: str
    dimension: int

    def embed(self, texts: Sequence[str], *, query: bool) -> np.ndarray:
        """The vectors of some texts, in their order, each of length 1: `(N, D)` float32.

        Args:
            texts: N of them; what a model cannot take in whole is cut off at its end.
            query: whether they are questions; some models embed those with another prompt than passages.
        """


def load_embedder(name: str, *, say: Callable[[str], None] = lambda line: None, progress: bool = False) -> Embedder:
    """The embedding model `name`, fetched if need be.

    A plain BERT runs on our own parts; all else that sentence-transformers knows runs through that library.

    Args:
        name: of the catalogue, a directory of sentence-transformers, or `organisation/name` on a hub.
        say: told what is about to be fetched.
        progress: shows a bar on standard error meanwhile.

    Raises:
        UserError: there is no such model, or it needs the library and that is not installed.
    """
    from intaglio.retrieval.bert import BertEmbedder, is_ours

    directory = pull(name, say=say, progress=progress)
    known_as = str(directory.resolve()) if Path(name).is_dir() else name
    return BertEmbedder(directory, known_as) if is_ours(directory) else _SentenceTransformers(directory, known_as)


class _SentenceTransformers:
    """See `Embedder`: any model that the library loads without code of the model's own."""

    def __init__(self, directory: Path, name: str) -> None:
        library = needs("sentence_transformers", "sentence-transformers", name, extra="rag")
        self._model = library.SentenceTransformer(str(directory), local_files_only=True, trust_remote_code=False)
        self.name, self.dimension = name, len(self._model.encode_document("one text"))  # its method's name changed

    def embed(self, texts: Sequence[str], *, query: bool) -> np.ndarray:
        """See `Embedder`."""
        encode = self._model.encode_query if query else self._model.encode_document
        vectors = encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32).reshape(len(texts), self.dimension)
