"""Every request has an id: the caller's, if it is a sane one, else ours. It is in every answer."""

import random
import re

from fastapi import Request
from starlette.types import Message, Scope, Send

HEADER = b"x-request-id"
SANE = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def request_id(request: Request) -> str:
    id: str = request.scope["request_id"]
    return id


def identified(scope: Scope, send: Send) -> Send:
    """Give the request an id, and the answer the same; note in the scope what was answered."""
    # It names a request in the log, nothing more: no need to ask the kernel for randomness.
    id = _given(scope) or _new()
    scope["request_id"] = id

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            scope["status"] = message["status"]
            message["headers"] = [*message["headers"], (HEADER, id.encode())]
        await send(message)

    return send_with_id


def _given(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == HEADER and SANE.fullmatch(value):
            return str(value, "ascii")
    return None


def _new() -> str:
    """A random UUID, written out in a third of the time that the library's class takes."""
    digits = f"{random.getrandbits(128):032x}"
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
