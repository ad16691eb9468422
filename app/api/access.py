"""The access log: a line for each request, for those who want it.

It goes around the whole application, ingest included, and is not there at all unless it is wanted.
The query is left out, since anything may be in it; the request's id and its model are in every
line.
"""

import time

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.timing import route_of
from app.logs import logger

log = logger(__name__)


def logged(app: ASGIApp) -> ASGIApp:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        began = time.perf_counter()
        try:
            await app(scope, receive, send)
        finally:
            log.info(
                "request",
                method=scope["method"],
                route=route_of(scope),
                path=scope["path"],
                # None if the caller hung up before there was an answer.
                status=scope.get("status"),
                duration_ms=round((time.perf_counter() - began) * 1000, 3),
            )

    return serve
