"""The routes that load adapters into a running server and let them go, by vLLM's names; off unless a folder is open."""

import asyncio

from starlette.responses import Response

from intaglio.serving.adapters import find_inside
from intaglio.serving.answers import json_answer
from intaglio.serving.errors import ApiError
from intaglio.serving.protocol.models import LoadAdapterBody, ModelCard, UnloadAdapterBody, Unloaded
from intaglio.serving.routes.base import Served, model_card, router

__all__ = ["absent_adapter_routes", "adapter_routes"]

_LOAD, _UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"

adapter_routes = router()
absent_adapter_routes = router()
"""For a server that was not told a folder: they say what it would take."""


@adapter_routes.post(_LOAD, response_model=ModelCard)
async def load_lora_adapter(service: Served, body: LoadAdapterBody) -> Response:
    """Loads an adapter of the folder; answers when requests may name it."""
    assert service.adapter_folder is not None
    folder = await asyncio.to_thread(find_inside, service.adapter_folder, body.lora_path)
    await service.load_adapter(body.lora_name, folder)
    return json_answer(model_card(service, body.lora_name))


@adapter_routes.post(_UNLOAD, response_model=Unloaded)
async def unload_lora_adapter(service: Served, body: UnloadAdapterBody) -> Response:
    """Lets an adapter go: no request may name it from now on, and those that run under it end under it."""
    await service.unload_adapter(body.lora_name)
    return json_answer(Unloaded(id=body.lora_name, object="model", deleted=True))


@absent_adapter_routes.post(_LOAD, include_in_schema=False)
@absent_adapter_routes.post(_UNLOAD, include_in_schema=False)
async def absent() -> Response:
    """Says how to allow it."""
    raise ApiError(404, "this server loads no adapters on request; start it with --adapter-folder DIR to allow it")
