"""What routes share: how a body is read, what errors look like in the OpenAPI document, the service and its models."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response

from intaglio.serving.errors import ApiError
from intaglio.serving.protocol.common import ErrorAnswer
from intaglio.serving.protocol.models import ModelCard
from intaglio.serving.service import Service

__all__ = ["Served", "model_card", "router"]


class _StrictRequest(Request):
    """Reads JSON as the RFC has it: no NaN, no half of a character, no nesting without end."""

    async def json(self) -> Any:
        body = await self.body()
        try:
            return from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise ApiError(400, f"the body is not JSON: {error}") from error


class _StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return strict


def router() -> APIRouter:
    """For routes that read JSON strictly and answer errors with error objects."""
    errors: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorAnswer}, "5XX": {"model": ErrorAnswer}}
    return APIRouter(route_class=_StrictRoute, responses=errors)


def model_card(service: Service, name: str) -> ModelCard:
    """What `/v1/models` says of the model under one of its names, or of an adapter."""
    adapter = service.adapters.get(name)
    return ModelCard(
        id=name,
        object="model",
        created=adapter.created if adapter else service.created,
        owned_by="intaglio",
        root=adapter.root if adapter else service.root or service.names[0],
        parent=service.names[0] if adapter else None,
        max_model_len=service.engine.max_model_len,
    )


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(_service)]
"""The service of the app that a request came to."""
