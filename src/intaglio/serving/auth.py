"""Who may ask: everything needs the key but what is named here."""

import hmac
from collections.abc import Container, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from intaglio.serving.errors import ApiError, error_response

__all__ = ["Auth"]


_REFUSAL = error_response(
    ApiError(
        401,
        "a key is needed: Authorization: Bearer KEY",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
)


class Auth:
    """Refuses requests without a key, before anything else looks at them.

    Args:
        app: answers the others.
        keys: any of them opens; without any, everybody may ask.
        public: paths that need none. What is not named needs one, so that a new route is never open by mistake.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], public: Container[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        allowed = scope["type"] == "lifespan" or self._may_ask(scope)
        await (self._app if allowed else _REFUSAL)(scope, receive, send)

    def _may_ask(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        if not self._keys or scope["path"] in self._public or _is_preflight(scope, headers):
            return True
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = key.strip().encode("latin-1")  # as headers are decoded
        # every key is compared in full: the time taken tells nothing of how far one fits
        fits = [hmac.compare_digest(given, known) for known in self._keys]
        return scheme.lower() == "bearer" and any(fits)


def _is_preflight(scope: Scope, headers: Headers) -> bool:
    """Whether a browser asks if it may ask: it never sends a key along."""
    return scope["type"] == "http" and scope["method"] == "OPTIONS" and "access-control-request-method" in headers
