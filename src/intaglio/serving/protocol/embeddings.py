"""`/v1/embeddings`: what is asked and what is answered."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from intaglio.serving.protocol.common import Answer, Body, Problem, Prompts, Usage, several

__all__ = ["Embedding", "EmbeddingBody", "Embeddings"]


class EmbeddingBody(Body):
    """Texts to turn into vectors.

    Attributes:
        input: a text, its token ids, or a list of either.
        encoding_format: numbers in JSON, or little-endian float32 in base64 (what openai-python asks for by itself).
        truncate_prompt_tokens: the last tokens of each input that are kept; -1 for as many as the model reads.
    """

    input: Prompts
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    add_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=2**31)] | None = None

    @model_validator(mode="after")
    def _is_supported(self) -> "EmbeddingBody":
        if self.dimensions is not None:
            raise Problem("vectors cannot be shortened", "dimensions")
        return self

    @property
    def inputs(self) -> list[str | list[int]]:
        """The inputs, one or several."""
        return several(self.input)


class Embedding(Answer):
    """One vector."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(Answer):
    """One vector an input, in their order."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage
