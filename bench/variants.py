"""What the service is compared with: `python -m bench.variants VARIANT`, settings as usual.

asgi      no framework: reads the body and sends it back
fastapi   a route that only reads the body and answers, and one that sends it back
direct    the service with a transaction per request, on a pool of connections, no group commit

All of them run under uvicorn exactly as the service does.
"""

import os
import sys

from anyio import to_thread
from fastapi import FastAPI, Request, Response
from starlette.types import Receive, Scope, Send

from app import cli
from app.api import app as application
from app.api import server
from app.config import Settings
from app.ingest.record import Entry, Outcome
from app.ingest.recorder import Recorder
from app.storage.db import Database


def asgi() -> int:
    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        parts: list[bytes] = []
        more = True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        body = b"".join(parts)
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})

    server.serve(echo, Settings.from_env(os.environ))
    return 0


def fastapi() -> int:
    app = FastAPI()

    # It takes what the real route takes, so that FastAPI has the same to do.
    @app.post("/v1/models/{model}/predictions", status_code=202)
    async def read(model: str, request: Request) -> Response:  # noqa: ARG001
        await request.body()
        return Response(b'{"accepted":1}', status_code=202, media_type="application/json")

    @app.post("/v1/models/{model}/echo")
    async def echo(model: str, request: Request) -> Response:  # noqa: ARG001
        return Response(await request.body(), media_type="application/json")

    @app.get("/readyz")
    async def ready() -> str:
        return "ok"

    server.serve(app, Settings.from_env(os.environ))
    return 0


def direct() -> int:
    """Every request has a thread and a commit of its own; each thread finds a connection."""

    async def record(self: Recorder, entry: Entry) -> Outcome:
        (result,) = await to_thread.run_sync(self._settle, [entry])
        if isinstance(result, Exception):
            raise result
        return result

    # In place of the recorder's single connection; the service itself has no such switch.
    def pool(url: str, pool_size: int, *, pre_ping: bool) -> Database:  # noqa: ARG001
        return Database(url, pool_size=40, pre_ping=pre_ping)

    Recorder.record = record  # type: ignore[method-assign]
    application.Database = pool  # type: ignore[assignment,attr-defined]
    return cli.main(["api"])


if __name__ == "__main__":
    sys.exit({"asgi": asgi, "fastapi": fastapi, "direct": direct}[sys.argv[1]]())
