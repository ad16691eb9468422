"""What it costs a request of one prediction to be watched: by nobody, by the access log, by traces.

`python -m bench.watched [--requests 3000] [--rounds 15]` prints microseconds of CPU per request, in
process: without uvicorn, and without the commit, whose place is taken by somebody who nods.
"""

import argparse
import asyncio
import gc
import json
import logging
import os
import statistics
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from starlette.types import ASGIApp, Message

from app import logs, tracing
from app.api import server
from app.api.app import create_app
from app.config import Settings
from app.domain.model import Model, ModelSettings
from app.ingest.record import Receipt, Submission
from app.ingest.reduce import Watched
from app.storage.db import Database
from bench.family import LABELS, MODEL

WATCHED_BY: dict[str, dict[str, Any]] = {
    "nobody": {},
    "access log": {"access_log": True},
    # Nobody listens there: what is measured is to make the spans, and to give up on them.
    "traces": {"otlp_endpoint": "http://127.0.0.1:9"},
}
BODY = json.dumps({"predicted": [LABELS[0]]}).encode()
HEADERS = [(b"host", b"localhost"), (b"content-type", b"application/json")]


class Nodding:
    """A recorder that stores nothing."""

    async def record(self, submission: Submission) -> Receipt:
        return Receipt(submission.reduced.version, submission.reduced.accepted, 0, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with open(os.devnull, "w") as nowhere:
        logging.basicConfig(level=logging.INFO, handlers=[logs.handler("json", nowhere)])
        for name, changes in WATCHED_BY.items():
            settings = Settings(auth="off", **changes)
            tracing.start(settings, "api")
            found = asyncio.run(_measured(_app(settings), options.requests, options.rounds))
            tracing.stop()
            print(f"{name:<12} {found:6.1f} µs")


def _app(settings: Settings) -> ASGIApp:
    app = create_app(settings, Database("postgresql+psycopg://nobody@127.0.0.1:9/none"))
    own = replace(app.state.services, recorder=Nodding())
    model = Model(1, MODEL, ModelSettings(tuple(LABELS)), 1, {"v1": datetime.now(UTC)}, "v1")
    own.directory._watched[MODEL] = Watched.of(model)
    app.state.services = own
    return server._watched(app, settings)


async def _measured(app: ASGIApp, requests: int, rounds: int) -> float:
    async def receive() -> Message:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: Message) -> None:
        assert message.get("status", 202) == 202, message

    async def once() -> float:
        began = time.process_time()
        for _ in range(requests):
            # A task each, as uvicorn does it.
            await asyncio.create_task(_called(app, receive, send))
        return (time.process_time() - began) / requests * 1e6

    await once()
    gc.collect()
    gc.freeze()
    return statistics.median([await once() for _ in range(rounds)])


async def _called(app: ASGIApp, receive: Any, send: Any) -> None:
    scope = {
        "type": "http",
        "method": "POST",
        "path": f"/v1/models/{MODEL}/predictions",
        "query_string": b"",
        "headers": HEADERS,
    }
    await app(scope, receive, send)


if __name__ == "__main__":
    main()
