"""The routes for those who run the server, and the chat page."""

from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from intaglio.serving import page
from intaglio.serving.routes.base import Served, router

__all__ = ["operation_routes", "page_routes", "public_paths"]

operation_routes = router()

_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the page's own policy says the rest, and cannot say this
    "X-Content-Type-Options": "nosniff",
}


@operation_routes.get("/health")
async def health(service: Served) -> Response:
    """200 while requests are answered, else 503 with the reason."""
    alive = service.engine.alive
    return JSONResponse({"status": "ok" if alive else service.engine.state}, 200 if alive else 503)


def page_routes() -> list[Route]:
    """One route for each file of the chat page."""
    return [_page_route(path, *answer) for path, answer in page.files().items()]


def public_paths() -> frozenset[str]:
    """What is answered without a key: whether the server lives, and the page, which asks for the key itself."""
    return frozenset(["/health", *page.files()])


def _page_route(path: str, file: Path, media_type: str) -> Route:
    async def answer(request: Request) -> Response:
        return FileResponse(file, media_type=media_type, headers=_HEADERS)

    return Route(path, answer)
