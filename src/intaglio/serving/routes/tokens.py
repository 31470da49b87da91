"""The routes that show the tokenizer, as vLLM has them."""

import asyncio

from starlette.responses import Response

from intaglio.serving.answers import json_answer
from intaglio.serving.errors import ApiError
from intaglio.serving.prompts import chat_ids, template_for, text_ids
from intaglio.serving.protocol.models import DetokenizeBody, Detokenized, TokenizeBody, Tokenized, TokenizerInfo
from intaglio.serving.routes.base import Served, router
from intaglio.serving.service import Service

__all__ = ["token_routes"]

token_routes = router()


@token_routes.post("/tokenize", response_model=Tokenized)
async def tokenize(service: Served, body: TokenizeBody) -> Response:
    """The ids of a text or a conversation, as completions and chat would read it."""
    service.check_ready()
    service = service.of(body.model)
    ids = await asyncio.to_thread(_ids, service, body)
    spelt = {"token_strs": [service.tokenizer.token(i) or "" for i in ids]} if body.return_token_strs else {}
    return json_answer(Tokenized(tokens=ids, count=len(ids), max_model_len=service.engine.max_model_len, **spelt))


@token_routes.post("/detokenize", response_model=Detokenized)
async def detokenize(service: Served, body: DetokenizeBody) -> Response:
    """The text of ids."""
    tokenizer = service.of(body.model).tokenizer
    return json_answer(Detokenized(prompt=tokenizer.decode(body.tokens, skip_special_tokens=False)))


@token_routes.get("/tokenizer_info", response_model=TokenizerInfo)
async def tokenizer_info(service: Served) -> Response:
    """What a client needs to know to count and cut tokens itself."""
    service.check_ready()
    tokenizer = service.tokenizer
    info = TokenizerInfo(
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        pad_token=tokenizer.pad_token,
        unk_token=tokenizer.unk_token,
        chat_template=tokenizer.chat_template,
        model_max_length=service.engine.max_model_len,
    )
    return json_answer(info)


def _ids(service: Service, body: TokenizeBody) -> list[int]:
    if body.messages is None and body.prompt is not None:
        return text_ids(service, [body.prompt], body.add_special_tokens)[0]
    if body.messages is None or body.prompt is not None:
        raise ApiError(400, "either a prompt or messages are expected", param="prompt")
    tools = body.tools or []
    return chat_ids(service, body, template_for(service, body, tools), tools)
