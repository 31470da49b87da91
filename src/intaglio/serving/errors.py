"""How the API says no: OpenAI's error object, the right status, and nothing of what was sent.

400 is what was asked, 401 the key, 404 the address or the model, 405 the method, 413 the body's size, 429 too much at
once, 503 no engine now, and 500 a mistake of ours. OpenAI's clients try 429 and 5xx again by themselves, so a client's
mistake must be none of these.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from intaglio.errors import UserError
from intaglio.serving.client import EngineUnavailable
from intaglio.serving.protocol.common import Problem

__all__ = ["ApiError", "ClientGone", "add_error_handlers", "as_api_error", "error_response"]

logger = logging.getLogger(__name__)

CLIENT_GONE = 499  # nobody reads it but the log; nginx made the number customary
_LONGEST_MESSAGE = 400  # characters: a template or a schema may quote what it was given
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_REASONS = {404: "there is nothing at this address", 405: "this address takes another method"}
_FIELD = re.compile(r"[a-z_]+|\d+")
_PYDANTIC_TYPES = {"str", "int", "float", "bool", "list", "dict"}
_NO_OBJECT = "the body is not a JSON object with Content-Type: application/json"


class ApiError(HTTPException):
    """An answer that is no success.

    Args:
        status: of HTTP.
        message: what is wrong; quotes nothing of the request but numbers.
        param: the field to blame.
        code: for programs.
        headers: beside the usual ones.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.message, self.param, self.code = message[:_LONGEST_MESSAGE], param, code

    @property
    def body(self) -> dict[str, Any]:
        """The error object."""
        kind = _TYPES.get(self.status_code, "server_error" if self.status_code >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class ClientGone(Exception):
    """The client does not wait for the answer any more."""


def error_response(error: ApiError) -> Response:
    """The error as an answer."""
    return JSONResponse(error.body, error.status_code, error.headers)


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of any exception; of one that is our mistake no more than that it is."""
    match error:
        case ApiError():
            return error
        case HTTPException(status_code=status):
            return ApiError(status, _REASONS.get(status, str(error.detail)), headers=error.headers)
        case RequestValidationError():
            return _of_fields(error)
        case Problem():
            return ApiError(400, f"{error.param}: {error}", param=error.param)
        case UserError():
            return ApiError(400, _unquoted(str(error)), param=_param(error.where))
        case EngineUnavailable():
            return ApiError(503, str(error) or "the engine takes no requests now", headers={"Retry-After": "2"})
        case _:
            return ApiError(500, "internal error; the server's log has the details")


def add_error_handlers(app: FastAPI) -> None:
    """Makes every exception an error object."""
    for kind in (HTTPException, RequestValidationError, UserError, Problem, EngineUnavailable):
        app.add_exception_handler(kind, _handle)
    app.add_exception_handler(ClientGone, _nobody_reads)


async def _handle(request: Request, error: Exception) -> Response:
    return error_response(as_api_error(error))


async def _nobody_reads(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


def _unquoted(message: str) -> str:
    """What is wrong with a schema or an expression, without the piece of it that the compiler shows."""
    return message.partition('"')[0].strip() if message.startswith("structured.") else message


def _of_fields(invalid: RequestValidationError) -> ApiError:
    """The first of the errors that lie deepest: of a union's branches, the one that the value fits best."""
    errors = invalid.errors()
    worst = max(errors, key=lambda error: len(error["loc"]))
    problem = worst.get("ctx", {}).get("error")
    place = [str(part) for part in worst["loc"][1:] if _names_a_field(part)]
    if isinstance(problem, Problem):
        place.append(problem.param)
    if not place:
        return ApiError(400, _NO_OBJECT)
    param = ".".join(place)
    return ApiError(400, f"{param}: {worst['msg'].removeprefix('Value error, ')}", param=param)


def _names_a_field(part: str | int) -> bool:
    """Whether it is a field or an index, not the name of a branch of a union."""
    return _FIELD.fullmatch(str(part)) is not None and part not in _PYDANTIC_TYPES


def _param(where: str) -> str | None:
    """The field that a `UserError` names, if it names one and no file."""
    return where if re.fullmatch(r"[a-z_]+(\[\d+\])*(\.[a-z_]+)?", where) else None
