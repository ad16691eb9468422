"""AppError in, RFC 9457 problem details out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from app.api.request_id import request_id
from app.errors import (
    AppError,
    Conflict,
    Flaw,
    Forbidden,
    InvalidInput,
    Malformed,
    NotFound,
    Outdated,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnsupportedMedia,
    escaped,
)
from app.logs import logger

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Problem:
    """A kind of problem; `/problems/{slug}` explains it."""

    slug: str
    title: str
    status: HTTPStatus
    meaning: str


PROBLEMS: dict[type[AppError], Problem] = {
    Unauthenticated: Problem(
        "unauthenticated",
        "A key is needed",
        HTTPStatus.UNAUTHORIZED,
        "Send `Authorization: Bearer <key>` with a key that exists and was not revoked. "
        "`shiftwatch key create --scope read` makes one.",
    ),
    Forbidden: Problem(
        "forbidden",
        "The key does not cover this",
        HTTPStatus.FORBIDDEN,
        "Keys have scopes: `ingest` to send predictions, `read` to ask, `admin` for everything.",
    ),
    NotFound: Problem(
        "not-found",
        "There is no such thing",
        HTTPStatus.NOT_FOUND,
        "The model, reference, window or key that the request names does not exist.",
    ),
    Conflict: Problem(
        "conflict",
        "This would contradict what is there",
        HTTPStatus.CONFLICT,
        "A reference stays as it is once predictions were counted under it, and so do the labels "
        "and the pane of a model that has references. Use a new version, or a new model.",
    ),
    Outdated: Problem(
        "outdated",
        "It has changed in the meantime",
        HTTPStatus.PRECONDITION_FAILED,
        "`If-Match` named another state than the current one. Read it again, then decide.",
    ),
    InvalidInput: Problem(
        "invalid-input",
        "The request does not make sense",
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "`errors` says what is wrong and where; `pointer` is a JSON Pointer into the body. "
        "Nothing was stored.",
    ),
    Malformed: Problem(
        "malformed",
        "The request cannot be read",
        HTTPStatus.BAD_REQUEST,
        "The body is not what its content type or encoding says. Nothing was stored.",
    ),
    TooLarge: Problem(
        "too-large",
        "The body is too large",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "`limit` is the largest body in bytes, after decompression. Send smaller batches. "
        "Nothing was stored.",
    ),
    UnsupportedMedia: Problem(
        "unsupported-media",
        "Nobody here reads this format",
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        "`detail` lists the content types and encodings that are understood.",
    ),
    Unavailable: Problem(
        "unavailable",
        "Not now",
        HTTPStatus.SERVICE_UNAVAILABLE,
        "The database is away or the service is overloaded or stopping. Send the same request "
        "again after `Retry-After` seconds, with the same Idempotency-Key.",
    ),
}
MEDIA_TYPE = "application/problem+json"


def install(app: FastAPI) -> None:
    app.add_exception_handler(AppError, _app_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, bug)


def problem_of(kind: type[AppError]) -> Problem:
    """The problem of an error's class, or of the nearest class above it."""
    return next(PROBLEMS[base] for base in kind.__mro__ if base in PROBLEMS)


def response_of(error: AppError, id: str) -> Response:
    """The whole answer; also for the ingest route, which does without FastAPI's handlers."""
    problem = problem_of(type(error))
    body: dict[str, Any] = {
        "type": f"/problems/{problem.slug}",
        "title": problem.title,
        "status": problem.status,
        "detail": str(error),
        "instance": f"urn:uuid:{id}",
    }
    headers: dict[str, str] = {}
    if isinstance(error, InvalidInput) and error.flaws:
        body["errors"] = [_flaw(flaw) for flaw in error.flaws]
    if isinstance(error, TooLarge):
        body["limit"] = error.limit
    if isinstance(error, Unavailable):
        headers["retry-after"] = str(error.retry_after_seconds)
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = 'Bearer realm="shiftwatch"'
    return _response(problem.status, body, headers)


def _response(status: int, body: dict[str, Any], headers: dict[str, str]) -> Response:
    return Response(json.dumps(body), status, headers, media_type=MEDIA_TYPE)


def _flaw(flaw: Flaw) -> dict[str, str]:
    where = {"pointer": flaw.pointer, "parameter": flaw.parameter}
    return {"detail": flaw.detail} | {name: at for name, at in where.items() if at is not None}


def _app_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AppError)
    return response_of(error, request_id(request))


def _validation_error(request: Request, error: Exception) -> Response:
    """What pydantic found wrong with a body or a parameter."""
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(one["type"] == "json_invalid" for one in found):
        return response_of(Malformed("the body is not valid JSON"), request_id(request))
    flaws = [_pydantic_flaw(one["loc"], one["msg"]) for one in found]
    first = flaws[0]
    where = first.pointer or first.parameter
    return response_of(InvalidInput(f"{where}: {first.detail}", flaws=flaws), request_id(request))


def _pydantic_flaw(loc: Sequence[str | int], message: str) -> Flaw:
    place, *path = loc
    detail = message.removeprefix("Value error, ")
    if place != "body":
        return Flaw(detail, parameter=str(path[0]) if path else str(place))
    return Flaw(detail, pointer="/".join(["#", *(escaped(str(part)) for part in path)]))


def _http_exception(request: Request, error: Exception) -> Response:
    """What the router itself refuses: an unknown path, a wrong method."""
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:
        return response_of(NotFound(f"there is no {request.url.path}"), request_id(request))
    body = {
        "type": "about:blank",
        "title": HTTPStatus(error.status_code).phrase,
        "status": error.status_code,
        "detail": error.detail,
        "instance": f"urn:uuid:{request_id(request)}",
    }
    return _response(error.status_code, body, dict(error.headers or {}))


def _gone(request: Request, _: Exception) -> Response:
    """The caller hung up in the middle of the body: nothing was stored, and nobody reads this."""
    return response_of(Malformed("the body ended too early"), request_id(request))


def bug(request: Request, error: Exception) -> Response:
    """What is wrong with us, not with the request: said in the log, and only there."""
    id = request_id(request)
    request.scope["bug"] = error
    log.error("bug", method=request.method, path=request.url.path, exc_info=error)
    body = {
        "type": "about:blank",
        "title": "Something is wrong with the service, not with the request",
        "status": 500,
        "detail": f"The service's log has more about request {id}.",
        "instance": f"urn:uuid:{id}",
    }
    return _response(500, body, {})
