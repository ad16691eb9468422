"""The access log: a line for each request, for those who want it.

It goes around the whole application, ingest included, and is not there at all unless it is wanted.
The query is left out, since anything may be in it; the request's id and its model are in every
line.
"""

import time
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import predictions
from app.logs import logger

log = logger(__name__)


def logged(app: ASGIApp) -> ASGIApp:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        began = time.perf_counter()
        # Stays if the caller hangs up before there is an answer.
        status: int | None = None

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await app(scope, receive, noting)
        finally:
            log.info(
                "request",
                method=scope["method"],
                route=route(scope),
                path=scope["path"],
                status=status,
                duration_ms=round((time.perf_counter() - began) * 1000, 3),
            )

    return serve


def route(scope: Mapping[str, Any]) -> str | None:
    """The template that a request matched, once it was served; None if there is no such path."""
    if "route" in scope:
        path: str = scope["route"].path
        return path
    # Ingest is served ahead of all routing.
    return predictions.router.prefix if "path_params" in scope else None
