"""Every request has an id: the caller's, if it is a sane one, else ours. It is in every answer."""

import re
import uuid

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-request-id"
SANE = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def request_id(request: Request) -> str:
    id: str = request.scope["request_id"]
    return id


class RequestId:
    """Plain ASGI: Starlette's BaseHTTPMiddleware costs more than the rest of the hot path."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        id = _given(scope) or str(uuid.uuid4())
        scope["request_id"] = id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (HEADER, id.encode())]
            await send(message)

        await self.app(scope, receive, send_with_id)


def _given(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == HEADER and SANE.fullmatch(value):
            return str(value, "ascii")
    return None
