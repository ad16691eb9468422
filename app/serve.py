"""`shiftwatch serve`: the whole service on one machine, as a small family of processes.

The parent does nothing but look after its children: the embedded PostgreSQL, if there is one, the
API, and the worker, whose statistics must not take the interpreter away from ingest. It must stay
in its main thread, because the kernel ends a child when the thread that started it ends. A child
that dies is started again; when the parent dies, all die.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from types import FrameType
from typing import IO

from app.config import PREFIX, Settings
from app.logs import logger
from app.processes import ends_with_parent
from app.storage import schema
from app.storage.db import Database
from app.storage.embedded import Embedded

log = logger(__name__)

LOOK_SECONDS = 0.1
# A child that ends sooner was never well: a port in use, a setting that cannot be.
HEALTHY_SECONDS = 5.0
# The code that uvicorn ends with if it could not start: the port is in use. On a busy machine it
# takes longer than that to find out.
COULD_NOT_START = 3
# How long a child that keeps dying is left alone before it is started again, at first and at most.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
# Long enough for every request under way to get its commit and its answer.
GRACE_SECONDS = 30.0


# SIGINT too: a shell that starts us in the background has it ignored, and Python then as well.
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Stop(BaseException):
    """A signal asked us to end; unwinds everything, like KeyboardInterrupt."""


@contextmanager
def stopping_on_signals(*, once: bool = False) -> Iterator[Event]:
    """SIGTERM, SIGHUP and Ctrl-C unwind the block; with `once`, no other disturbs the unwinding.

    The interpreter throws away what is raised in a finalizer, and a signal may come while one runs:
    whoever waits in the block must also look at the event.
    """
    asked = Event()

    def stop(number: int, _: FrameType | None) -> None:
        asked.set()
        if once:
            for other in SIGNALS:
                signal.signal(other, signal.SIG_IGN)
        raise Stop(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield asked
    except Stop:
        log.info("stopped")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Child:
    """A process of ours that is started again when it dies; `output` takes what it prints."""

    def __init__(
        self, command: Sequence[str], environ: dict[str, str], output: IO[bytes] | None = None
    ) -> None:
        self.command = command
        self.environ = environ
        self.output = output
        self.has_lived = False
        self.is_first = True
        self.pause = 0.0
        self.start()

    def start(self) -> None:
        self.began = time.monotonic()
        # A session of its own: Ctrl-C is for the parent, which then ends us in good order.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app", *self.command],
            env=self.environ,
            stdout=self.output,
            stderr=self.output,
            start_new_session=True,
            preexec_fn=ends_with_parent(signal.SIGTERM),
        )

    def look_after(self) -> None:
        """Start it again if it has died, unless it never lived; later each time if it dies soon."""
        code = self.process.poll()
        age = time.monotonic() - self.began
        if code is None:
            if age >= HEALTHY_SECONDS + self.pause:
                self.has_lived, self.pause = True, 0.0
            return
        if not self.has_lived or (self.is_first and code == COULD_NOT_START):
            raise SystemExit(code if code > 0 else 1)
        if age >= self.pause:
            log.error("child died, starting it again", command=self.command[0], code=code)
            self.is_first = False
            self.pause = min(2 * self.pause or FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
            self.start()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            log.error("child does not stop, killing it", command=self.command[0])
            self.process.kill()
            self.process.wait()


def look_after(
    children: Sequence[Child],
    embedded: Embedded | None,
    until: Callable[[], bool],
) -> None:
    """Until a signal comes, a child will not live, or the caller has had enough."""
    while not until():
        if embedded is not None and not embedded.alive():
            embedded.recover()
        for child in children:
            child.look_after()
        time.sleep(LOOK_SECONDS)


@contextmanager
def database_url(settings: Settings) -> Iterator[tuple[str, Embedded | None]]:
    """Of the configured database, or of the embedded one: the running one, or started here."""
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value(), None
        return
    with Embedded(settings.data_dir, settings.pg_bin) as embedded:
        yield embedded.start().url, embedded


@contextmanager
def migrated(settings: Settings) -> Iterator[tuple[str, Embedded | None]]:
    """The same, with the schema of this release."""
    with database_url(settings) as (url, embedded):
        database = Database(url)
        try:
            schema.upgrade(database)
        finally:
            database.close()
        yield url, embedded


@contextmanager
def children(
    settings: Settings, url: str, output: IO[bytes] | None = None
) -> Iterator[Sequence[Child]]:
    """The API and the worker, stopped at the end of the block."""
    environ = _environ(settings, url)
    found = [Child([command], environ, output) for command in ("api", "worker")]
    try:
        yield found
    finally:
        for child in found:
            child.stop()


def run(settings: Settings) -> None:
    """Serve until told to stop."""
    with (
        stopping_on_signals() as asked,
        migrated(settings) as (url, embedded),
        children(settings, url) as family,
    ):
        look_after(family, embedded, until=asked.is_set)


def _environ(settings: Settings, url: str) -> dict[str, str]:
    """Our own environment, with what the options and the embedded server decided."""
    decided = {
        "DATABASE_URL": url,
        "HOST": settings.host,
        "PORT": str(settings.port),
        "DATA_DIR": str(settings.data_dir),
    }
    files = {f"{PREFIX}{name}_FILE" for name in decided}
    inherited = {name: value for name, value in os.environ.items() if name not in files}
    return inherited | {PREFIX + name: value for name, value in decided.items()}
