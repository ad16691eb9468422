"""The worker: call the verbs until told to stop.

One thread evaluates and a few deliver, because a receiver may take its time; one forgets what is
too old, now and then. Being told by the database what became due only shortens the wait; asking
every so often is what it rests on. Any number of workers share the work.
"""

import signal
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from structlog.contextvars import clear_contextvars

from app import deliver, metrics, prune, tracing, vitals
from app.config import Settings
from app.deliver import Sender
from app.errors import Unavailable
from app.evaluate.due import Worker
from app.logs import logger
from app.storage import schema
from app.storage.db import Database
from app.storage.listen import listen
from app.storage.models import CHANNEL

log = logger(__name__)

POLL_SECONDS = 0.5
# After the database went away, or a surprise.
PAUSE_SECONDS = 1.0
DELIVERERS = 4
# A step that takes longer is stuck: far more than a lease, or a receiver's patience.
STUCK_SECONDS = 300.0
# Not at once: whoever restarts a worker has other worries.
FIRST_PRUNE_SECONDS = 60.0
PRUNE_EVERY_SECONDS = 3600.0
# What is under way gets this long to finish when we are told to stop.
GRACE_SECONDS = 25.0


def now() -> datetime:
    return datetime.now(UTC)


class Loops:
    """Threads that each do one kind of work, one unit after the other, as long as there is any."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._stop = threading.Event()
        self._due = threading.Event()
        self._queued = threading.Event()
        # When each thread that is at work began the step it is in.
        self._steps: dict[str, float] = {}
        work = Worker(database, settings.root_url)
        send = Sender()

        def evaluate_next() -> bool:
            worked = work.evaluate_next(now())
            if worked:
                # It may have queued a notice.
                self._queued.set()
            return worked

        def deliver_next() -> bool:
            return deliver.deliver_next(database, settings, send, now)

        self._threads = [
            threading.Thread(target=self._listen, name="listen", daemon=True),
            # A daemon: what it has under way may take long, and can be begun again.
            threading.Thread(target=self._prune, name="prune", daemon=True),
            threading.Thread(target=self._loop, args=[evaluate_next, self._due], name="evaluate"),
            *(
                threading.Thread(target=self._loop, args=[deliver_next, self._queued], name=name)
                for name in (f"deliver-{i}" for i in range(DELIVERERS))
            ),
        ]

    def start(self) -> None:
        """Begin once the database has the schema of this release, unless told to stop before."""
        while not self._stop.is_set() and not self._is_migrated():
            self._stop.wait(PAUSE_SECONDS)
        if self._stop.is_set():
            return
        for thread in self._threads:
            thread.start()
        log.info("worker started")

    def _is_migrated(self) -> bool:
        try:
            with self._database.begin() as conn:
                ready, current = schema.at_head(conn), schema.current(conn)
        except Unavailable as error:
            log.warning("waiting for the database", error=str(error))
            return False
        if not ready:
            log.warning("waiting for `shiftwatch migrate`", at=current, wanted=schema.head())
        return ready

    def stop(self) -> None:
        """Finish what is under way, and nothing more."""
        self._stop.set()
        self._due.set()
        self._queued.set()
        for thread in self._threads:
            if thread.is_alive() and not thread.daemon:
                thread.join(GRACE_SECONDS)
        log.info("worker stopped")

    def ailment(self) -> str | None:
        """What is wrong with the worker, if anything is; a database that is away is not."""
        began = self._steps.copy()
        for thread in self._threads:
            if thread.name in began and not thread.is_alive():
                return f"{thread.name} has died"
        now = time.monotonic()
        stuck = [name for name, at in began.items() if now - at > STUCK_SECONDS]
        return f"stuck: {', '.join(sorted(stuck))}" if stuck else None

    def wait(self) -> None:
        self._stop.wait()

    def ask_to_stop(self) -> None:
        self._stop.set()

    def _loop(self, step: Callable[[], bool], wake: threading.Event) -> None:
        while not self._stop.is_set():
            # What the step before was about is still known, for the line that tells of its failure.
            clear_contextvars()
            self._steps[threading.current_thread().name] = time.monotonic()
            try:
                worked = step()
            except Unavailable as error:
                log.warning("cannot work, trying again", error=str(error))
                self._stop.wait(PAUSE_SECONDS)
                continue
            except Exception:
                log.exception("step failed", thread=threading.current_thread().name)
                self._stop.wait(PAUSE_SECONDS)
                continue
            if not worked:
                wake.wait(POLL_SECONDS)
                wake.clear()

    def _prune(self) -> None:
        pause = FIRST_PRUNE_SECONDS
        while not self._stop.wait(pause):
            pause = PRUNE_EVERY_SECONDS
            try:
                prune.prune_now(self._database, self._settings, now())
            except prune.WrongClock as error:
                log.error("cannot prune", error=str(error))
            except Unavailable as error:
                log.warning("cannot prune, trying again later", error=str(error))
            except Exception:
                log.exception("pruning failed")

    def _listen(self) -> None:
        while not self._stop.is_set():
            try:
                listen(self._database.url, CHANNEL, self._due.set, self._stop.is_set)
            except Unavailable:
                self._stop.wait(PAUSE_SECONDS)


def run(settings: Settings, database: Database) -> None:
    """Work until SIGTERM or SIGINT, then finish what is under way."""
    tracing.start(settings, "worker")
    loops = Loops(settings, database)
    # Until it prunes, it is counted from here whether that is overdue.
    metrics.LAST_PRUNE.set(now().timestamp())
    if settings.worker_port is not None:
        vitals.serve(settings.host, settings.worker_port, loops.ailment)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loops.ask_to_stop())
    loops.start()
    loops.wait()
    loops.stop()
    tracing.stop()
