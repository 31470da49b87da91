"""`/v1/embeddings`: texts in, vectors out."""

import asyncio
import base64
from collections.abc import Sequence

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from intaglio.serving.answers import json_answer
from intaglio.serving.generation import speaking, unless_gone
from intaglio.serving.prompts import fitted, text_ids
from intaglio.serving.protocol.common import Usage
from intaglio.serving.protocol.embeddings import Embedding, EmbeddingBody, Embeddings
from intaglio.serving.service import Service

__all__ = ["answer_embeddings"]


async def answer_embeddings(request: Request, service: Service, body: EmbeddingBody) -> Response:
    """One vector an input, of length 1.

    Raises:
        ApiError, UserError, EngineUnavailable, ClientGone: see `errors`.
    """
    service = speaking(request, service, body.model)
    service.limits.check_prompts(len(body.inputs), "input")
    prompts = await asyncio.to_thread(_prepare, service, body)
    with service.admission.admit(len(prompts)):
        embedding = service.engine.embed(prompts, pooling=service.pooling, normalize=True, adapter=service.adapter)
        vectors = await unless_gone(request, embedding)
    read = sum(map(len, prompts))
    data = [
        Embedding(object="embedding", index=index, embedding=_written(vector, body))
        for index, vector in enumerate(vectors)
    ]
    usage = Usage(prompt_tokens=read, total_tokens=read)
    return json_answer(Embeddings(object="list", data=data, model=body.model or service.names[0], usage=usage))


def _prepare(service: Service, body: EmbeddingBody) -> list[list[int]]:
    encoded = text_ids(service, body.inputs, body.add_special_tokens)
    return [fitted(service, ids, keep=body.truncate_prompt_tokens, param="input", room=0) for ids in encoded]


def _written(vector: Sequence[float], body: EmbeddingBody) -> list[float] | str:
    if body.encoding_format == "float":
        return list(vector)
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()
