"""What the service is compared with: `python -m bench.variants VARIANT`, settings as usual.

read      a FastAPI route that only reads the body and answers: what anything on this stack costs
direct    the service with a transaction per request, on a pool of connections, no group commit
"""

import os
import sys

import uvicorn
from anyio import to_thread
from fastapi import FastAPI, Request, Response

from app import cli
from app.api import app as application
from app.config import Settings
from app.ingest.record import Entry, Outcome
from app.ingest.recorder import Recorder
from app.storage.db import Database


def read() -> int:
    settings = Settings.from_env(os.environ)
    app = FastAPI()

    # It takes what the real route takes, so that FastAPI has the same to do.
    @app.post("/v1/models/{model}/predictions", status_code=202)
    async def post(model: str, request: Request) -> Response:  # noqa: ARG001
        await request.body()
        return Response(b'{"accepted":1}', status_code=202, media_type="application/json")

    @app.get("/readyz")
    async def ready() -> str:
        return "ok"

    uvicorn.run(app, host=settings.host, port=settings.port, log_config=None, access_log=False)
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
    sys.exit({"read": read, "direct": direct}[sys.argv[1]]())
