"""The application: what is served where, and what lives as long as it does."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import to_thread
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from app import __version__, logs, tracing
from app.api import (
    alarms,
    corrections,
    counts,
    errors,
    estimates,
    health,
    keys,
    metrics,
    models,
    openapi,
    pages,
    panes,
    plans,
    predictions,
    problems,
    references,
    timing,
    webhooks,
)
from app.api.auth import Gate
from app.api.deps import Services
from app.api.gauges import Gauges
from app.api.pace import Answers, Pace
from app.api.request_id import identified
from app.config import Settings
from app.evaluate.look import Evaluator
from app.ingest.directory import Directory
from app.ingest.recorder import Recorder
from app.storage.db import Database

ROUTERS = (
    models.router,
    references.router,
    predictions.router,
    counts.router,
    panes.router,
    estimates.router,
    corrections.router,
    plans.router,
    alarms.router,
    alarms.silences_router,
    webhooks.router,
    webhooks.deliveries_router,
    keys.router,
    health.router,
    metrics.router,
    problems.router,
    pages.router,
)


class Service(FastAPI):
    """FastAPI, with an id and a time for every request, and the hot path ahead of everything."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        began = time.perf_counter()
        try:
            send = identified(scope, send)
            # Never taken back: a request has a task to itself, and the variable ends with it.
            logs.request.set(scope)
            if not await predictions.serve(self, scope, receive, send):
                await self._serve(scope, receive, send)
        finally:
            timing.count(scope, began)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except Exception as error:
            # Starlette raises it once more after it was answered, for servers that log it then.
            if scope.get("bug") is not error:
                raise


def create_app(settings: Settings, database: Database) -> FastAPI:
    """The service on one database; the caller owns the database."""
    # The recorder has a connection to itself: readers must not keep it waiting. It tries again
    # by itself when that breaks.
    writer = Database(database.url, pool_size=1, pre_ping=False)
    recorder = Recorder(writer, settings.recorder_queue, settings.recorder_patience_seconds)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        recorder.start()
        yield
        # By now no request is taken any more; what waits for its commit still gets it.
        await recorder.stop()
        writer.close()
        # Here, because uvicorn ends the process by the signal that it got.
        await to_thread.run_sync(tracing.stop)

    app = Service(
        title="Shiftwatch",
        version=__version__,
        summary="Label-shift monitoring for deployed classifiers",
        lifespan=lifespan,
        responses=openapi.PROBLEM_RESPONSES,
        # Both of FastAPI's pages fetch their scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        # FastAPI's own traces would not have ingest, and would tell what errors say.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.services = Services(
        settings=settings,
        database=database,
        recorder=recorder,
        directory=Directory(database),
        evaluator=Evaluator(),
        gate=Gate(database, settings),
        gauges=Gauges(database, settings),
        pace=Pace(),
        answers=Answers(),
    )
    for router in ROUTERS:
        app.include_router(router)
    errors.install(app)
    pages.install(app)
    openapi.install(app)
    return app
