"""What the service is compared with: `python -m bench.variants VARIANT`, settings as usual.

read      a FastAPI route that only reads the body and answers: what any service on this stack costs
direct    the service with one transaction per request, on a pool of connections, no group commit
"""

import sys
from typing import Any

import uvicorn
from anyio import to_thread
from fastapi import FastAPI, Request, Response

from app import cli
from app.config import Settings
from app.ingest.record import Outcome, Submission
from app.ingest.recorder import Recorder


def read(settings: Settings) -> None:
    app = FastAPI()

    @app.post("/v1/models/{model}/predictions", status_code=202)
    async def post(model: str, request: Request) -> Response:
        await request.body()
        return Response(b'{"accepted":1}', status_code=202, media_type="application/json")

    @app.get("/readyz")
    async def ready() -> str:
        return "ok"

    uvicorn.run(app, host=settings.host, port=settings.port, log_config=None, access_log=False)


def direct() -> None:
    """Every request has a thread, a connection and a commit of its own."""

    async def record(self: Recorder, submission: Submission) -> Outcome:
        (result,) = await to_thread.run_sync(self._settle, [submission])
        if isinstance(result, Exception):
            raise result
        return result

    Recorder.record = record  # type: ignore[method-assign]


def main(arguments: list[str]) -> Any:
    if arguments[0] == "read":
        import os

        return read(Settings.from_env(os.environ))
    direct()
    return cli.main(["api"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
