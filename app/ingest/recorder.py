"""The recorder: one writer thread per process, one commit shared by many requests.

While a transaction commits, requests gather; the next transaction takes all of them, and those that
are being read just then. Nobody waits for company that is not there, so a lone request costs what a
transaction of its own would. Each request is answered only after its commit, or after we know that
there was none.
"""

import asyncio
import queue
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from msgspec import Struct

from app import metrics, tracing
from app.errors import Unavailable
from app.ingest.record import Entry, Outcome, needed_partitions, record
from app.logs import logger
from app.storage import partitions, writers
from app.storage.db import Database
from app.storage.partitions import Partition

log = logger(__name__)

# A transaction of more batches gains nothing, and makes its first request wait.
MAX_GROUP = 512
# A transaction begins when so many turns of the event loop have brought no further request: one in
# which nothing is read, and one in which what was read before is reduced.
QUIET_TURNS = 2
# Requests may come in without end, and the first should not wait for that.
LONGEST_GATHERING_SECONDS = 0.01
# Writers that share a pane's row wait for each other; eight rows were seen to be enough for
# sixteen writers.
SHARDS = 8
# Sums that may wait in memory. A softmax batch over many labels is hundreds of kilobytes, so
# counting batches alone is no bound.
MOST_WAITING_BYTES = 256 * 1024 * 1024
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
STUCK_SECONDS = 60.0
# Models that a line names; a group may have hundreds.
MOST_NAMED = 10


class OutcomeUnknown(Unavailable):
    """The database went away during the commit and did not come back in time to be asked."""


class _Waiting(Struct, frozen=True, eq=False):
    entry: Entry
    future: "asyncio.Future[Outcome]"
    nbytes: int


class Recorder:
    """Takes submissions from the event loop, commits them in groups, answers each.

    What is not handed to the thread yet is touched by the event loop alone, so nothing is locked.
    """

    def __init__(
        self,
        database: Database,
        capacity: int = 4096,
        patience_seconds: float = 10.0,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._capacity = capacity
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._shard = secrets.randbelow(SHARDS)
        self._writer = uuid4()
        self._transactions = 0
        self._groups: queue.SimpleQueue[list[_Waiting] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._known_partitions: set[Partition] = set()
        self._waiting: list[_Waiting] = []
        self._in_transaction = 0
        self._pending_bytes = 0
        self._flush_is_due = False
        self._busy_since: float | None = None
        self._stopping = False

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Finish what was taken, refuse the rest."""
        self._stopping = True
        while self._thread.is_alive() and (self._waiting or self._in_transaction):
            await asyncio.sleep(FIRST_PAUSE_SECONDS)
        self._groups.put(None)
        self._thread.join()

    @property
    def alive(self) -> bool:
        busy = self._busy_since
        stuck = busy is not None and time.monotonic() - busy > STUCK_SECONDS
        return self._thread.is_alive() and not stuck and not self._stopping

    @property
    def waiting(self) -> int:
        """Batches that are not stored yet."""
        return len(self._waiting) + self._in_transaction

    async def record(self, entry: Entry) -> Outcome:
        """Returns once the batch is durable; raises Unavailable when it was not stored."""
        if self._stopping or not self._thread.is_alive():
            raise Unavailable("the service is stopping; send the batch again")
        nbytes = entry.nbytes
        if self._is_full(nbytes):
            raise Unavailable("too many batches are waiting to be stored; send this one again soon")
        waiting = _Waiting(entry, asyncio.get_running_loop().create_future(), nbytes)
        self._pending_bytes += nbytes
        self._waiting.append(waiting)
        self._flush_soon()
        return await waiting.future

    def _is_full(self, more_bytes: int) -> bool:
        pending = self.waiting
        # One that is too large by itself must not be refused for ever.
        too_large = pending > 0 and self._pending_bytes + more_bytes > MOST_WAITING_BYTES
        return pending >= self._capacity or too_large

    def _flush_soon(self) -> None:
        if not self._flush_is_due and not self._in_transaction:
            self._flush_is_due = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._flush_when_quiet, loop, loop.time() + LONGEST_GATHERING_SECONDS)

    def _flush_when_quiet(
        self, loop: asyncio.AbstractEventLoop, deadline: float, seen: int = 0, quiet: int = 0
    ) -> None:
        """Flush once the event loop has no more requests to read."""
        waiting = len(self._waiting)
        quiet = 0 if waiting > seen else quiet + 1
        if quiet == QUIET_TURNS or waiting >= MAX_GROUP or loop.time() >= deadline:
            self._flush()
        else:
            loop.call_soon(self._flush_when_quiet, loop, deadline, waiting, quiet)

    def _flush(self) -> None:
        """Hand whoever is waiting to the writer."""
        self._flush_is_due = False
        group, self._waiting = self._waiting[:MAX_GROUP], self._waiting[MAX_GROUP:]
        self._in_transaction = len(group)
        self._groups.put(group)

    def _run(self) -> None:
        while (group := self._groups.get()) is not None:
            self._busy_since = time.monotonic()
            entries = [one.entry for one in group]
            with metrics.COMMIT_SECONDS.time(), _span(entries):
                results = self._settle(entries)
            metrics.COMMIT_BATCHES.observe(len(group))
            self._busy_since = None
            self._answer(group, results)

    def _settle(
        self, group: Sequence[Entry], *, first_try: bool = True
    ) -> list[Outcome | Exception]:
        """An outcome or an error for each; one that fails by itself does not fail the others."""
        try:
            return [*self._commit(group)]
        except Unavailable as error:
            return [error] * len(group)
        except Exception as error:
            if first_try:
                # A partition that we know of may have been dropped under us.
                self._known_partitions.clear()
                return self._settle(group, first_try=False)
            if len(group) == 1:
                # With its traceback it is told of where the request is answered, which has an id.
                log.error("batch failed", error=type(error).__name__, **_about(group))
                return [error]
            log.warning("group failed, trying one by one", **_about(group))
            return [result for one in group for result in self._settle([one], first_try=False)]

    def _commit(self, group: Sequence[Entry]) -> list[Outcome]:
        """Try until it is done, or patience ends."""
        deadline = time.monotonic() + self._patience_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return self._attempt(group)
            except OutcomeUnknown:
                raise
            except Unavailable as error:
                if time.monotonic() + pause > deadline:
                    raise
                log.warning("commit failed, trying again", error=str(error), **_about(group))
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _attempt(self, group: Sequence[Entry]) -> list[Outcome]:
        now = self._clock()
        self._ensure_partitions(needed_partitions(group, now))
        self._transactions += 1
        outcomes: list[Outcome] | None = None
        try:
            with self._database.begin() as conn:
                writers.note(conn, self._writer, self._transactions, now)
                outcomes = record(conn, group, self._shard, now)
        except Unavailable:
            # With outcomes in hand, all was sent and only the answer to the commit is missing.
            if outcomes is None or not self._took_place(group):
                raise
        return outcomes

    def _took_place(self, group: Sequence[Entry]) -> bool:
        """Ask the database, once it is back, whether our last transaction did."""
        deadline = time.monotonic() + self._patience_seconds
        while time.monotonic() < deadline:
            try:
                with self._database.begin() as conn:
                    found = writers.last(conn, self._writer) == self._transactions
            except Unavailable:
                time.sleep(FIRST_PAUSE_SECONDS)
                continue
            log.warning("commit got no answer, asked for it", took_place=found, **_about(group))
            return found
        raise OutcomeUnknown(
            "the database went away while the batch was being stored, so it may or may not have "
            "been counted; sending it again is safe only with an Idempotency-Key, or a sequence"
        )

    def _ensure_partitions(self, needed: set[Partition]) -> None:
        missing = needed - self._known_partitions
        if missing:
            with self._database.begin() as conn:
                partitions.ensure(conn, missing)
            self._known_partitions |= missing

    def _answer(self, group: Sequence[_Waiting], results: Sequence[Outcome | Exception]) -> None:
        loop = group[0].future.get_loop()
        try:
            loop.call_soon_threadsafe(self._resolve, group, results)
        except RuntimeError:
            log.warning("nobody is left to be answered", batches=len(group))

    def _resolve(self, group: Sequence[_Waiting], results: Sequence[Outcome | Exception]) -> None:
        self._in_transaction = 0
        self._pending_bytes -= sum(one.nbytes for one in group)
        for one, result in zip(group, results, strict=True):
            if one.future.done():
                continue
            if isinstance(result, Exception):
                one.future.set_exception(result)
            else:
                one.future.set_result(result)
        if self._waiting:
            self._flush_soon()


def _about(group: Sequence[Entry]) -> dict[str, Any]:
    """What a line says that is of many requests."""
    models = sorted({one.model.name for one in group})
    return {"batches": len(group), "models": models[:MOST_NAMED]}


def _span(group: Sequence[Entry]) -> tracing.Span:
    """Of the trace of the last batch that has one; the others' are linked."""
    traces = [one.trace for one in reversed(group) if one.trace is not None]
    if not traces:
        return tracing.NOTHING
    return tracing.span("commit", traces, "internal", {"shiftwatch.batches": len(group)})
