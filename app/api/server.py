"""uvicorn, as this service wants it."""

import gc
import sys
import time

import uvicorn
from starlette.types import ASGIApp

from app import tracing
from app.api import access, traced
from app.api.app import create_app
from app.config import Settings
from app.errors import Unavailable
from app.storage import keys, schema
from app.storage.db import Database

GRACE_SECONDS = 25
DATABASE_SECONDS = 30.0


class Exposed(Exception):
    """The service would be open to everybody who can reach its address."""


def run(settings: Settings, database: Database) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was taken."""
    refuse_exposure(settings, database)
    tracing.start(settings, "api")
    serve(_watched(create_app(settings, database), settings), settings)


def serve(app: ASGIApp, settings: Settings) -> None:
    """An application under uvicorn until SIGTERM or SIGINT; what is compared with ours, too."""
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        # Nobody's word is taken for who the caller is.
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=75,
        backlog=4096,
    )
    # One thread serves the requests, another commits them. At the default of 5 ms each would
    # wait long for the other whenever both have something to do.
    sys.setswitchinterval(0.001)
    _collect_less_garbage()
    uvicorn.Server(config).run()


def _watched(app: ASGIApp, settings: Settings) -> ASGIApp:
    """What nobody wants to see costs nothing: it is not there."""
    if settings.access_log:
        app = access.logged(app)
    return traced.traced(app) if tracing.is_on() else app


def _collect_less_garbage() -> None:
    """Leave what was loaded at the start out of every collection, and collect less often.

    A request makes thousands of short-lived objects and no cycles worth looking for; collecting at
    the default pace was seen to take a fifteenth of the hot path.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def refuse_exposure(settings: Settings, database: Database) -> None:
    """Beyond this machine there must be a key, or the operator's word that none is wanted."""
    if settings.loopback or settings.auth == "off" or _has_key(database):
        return
    raise Exposed(
        f"refusing to serve {settings.host} without a key: anybody could send predictions and "
        "read results. Create one with `shiftwatch key create --scope admin`, or set "
        "SHIFTWATCH_AUTH=off if something in front of the service keeps strangers out."
    )


def _has_key(database: Database) -> bool:
    deadline = time.monotonic() + DATABASE_SECONDS
    while True:
        try:
            with database.begin() as conn:
                return schema.at_head(conn) and bool(keys.all_keys(conn))
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
