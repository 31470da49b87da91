"""The API as an ASGI application.

A request passes, from the outside in: `Observe` numbers and logs it, CORS answers browsers' questions, `Auth` asks for
the key, `BodyLimit` counts what comes, and a route reads it.
"""

from collections.abc import Sequence

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from intaglio.serving.auth import Auth
from intaglio.serving.errors import add_error_handlers
from intaglio.serving.limits import BodyLimit
from intaglio.serving.observe import Observe
from intaglio.serving.routes.adapters import absent_adapter_routes, adapter_routes
from intaglio.serving.routes.openai import openai_routes
from intaglio.serving.routes.operations import operation_routes, page_routes, public_paths
from intaglio.serving.routes.tokens import token_routes
from intaglio.serving.service import Service

__all__ = ["create_app"]


def create_app(service: Service, *, api_keys: Sequence[str] = (), cors_origins: Sequence[str] = ()) -> FastAPI:
    """The API over a service.

    Args:
        service: answers the requests; `app.state.service` afterwards.
        api_keys: each opens everything; without any, everybody may ask.
        cors_origins: pages of other servers that browsers may ask from; `*` for all.
    """
    middleware = [Middleware(Observe, log_messages=service.log_prompts)]
    if cors_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=cors_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "retry-after"],
            )
        )
    middleware.append(Middleware(Auth, keys=api_keys, public=public_paths()))
    middleware.append(Middleware(BodyLimit, most=service.limits.body_bytes))
    app = FastAPI(
        title="Intaglio",
        description="An OpenAI-style API over one language model.",
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        middleware=middleware,
        routes=[*page_routes()],
    )
    app.state.service = service
    add_error_handlers(app)
    adapters = absent_adapter_routes if service.adapter_folder is None else adapter_routes
    for routes in (openai_routes, adapters, token_routes, operation_routes):
        app.include_router(routes)
    return app
