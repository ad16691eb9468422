"""The service as in production, two of each on one PostgreSQL, and what can happen to it."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.storage import schema
from app.storage.db import Database
from app.storage.embedded import Embedded
from bench.soak.books import Kind
from tests.journeys.processes import Server, children, free_port
from tests.journeys.test_exactness import wait_until_dead
from tests.journeys.test_webhooks import Receiver

FROZEN_SECONDS = 8.0
# Less than the first pause between attempts: the second one finds it back.
AWAY_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything there is. The first API and the first worker are never killed, so that there are
    processes that live as long as the soak does, whose memory can be watched."""

    embedded: Embedded
    database: Database
    apis: list[Server]
    workers: list[Server]
    receiver: Receiver
    vitals: list[str]
    logs: Path

    @property
    def replicas(self) -> list[str]:
        return [one.url for one in self.apis]

    def lasting(self) -> dict[str, int]:
        return {"API": self.apis[0].process.pid, "worker": self.workers[0].process.pid}


@contextmanager
def stage(home: Path, sabotage: str | None) -> Iterator[Stage]:
    with ExitStack() as stack:
        embedded = stack.enter_context(Embedded(home / "data"))
        url = embedded.start().url
        database = Database(url)
        stack.callback(database.close)
        schema.upgrade(database)
        logs = home / "log"
        ports = [free_port() for _ in range(2)]

        def start(command: str, **environ: str) -> Server:
            server = Server(
                command, sabotage=sabotage, log=str(logs), SHIFTWATCH_DATABASE_URL=url, **environ
            )
            # Not `with`: a worker is never ready, since it has nobody to tell.
            stack.callback(_end, server)
            return server

        apis = [start("api") for _ in range(2)]
        workers = [start("worker", SHIFTWATCH_WORKER_PORT=str(port)) for port in ports]
        for one in apis:
            one.wait_until_ready()
        receiver = stack.enter_context(Receiver())
        vitals = [f"http://127.0.0.1:{port}/metrics" for port in ports]
        yield Stage(embedded, database, apis, workers, receiver, vitals, logs)


def _end(server: Server) -> None:
    if server.process.poll() is None:
        server.stop()


def happen(kind: Kind, on: Stage) -> None:
    FAULTS[kind](on)


def _worker_killed(on: Stage) -> None:
    on.workers[1].kill()
    on.workers[1].start()


def _api_killed(on: Stage) -> None:
    on.apis[1].kill()
    on.apis[1].start()


def _database_killed(on: Stage) -> None:
    os.kill(on.embedded.start().pid, signal.SIGKILL)
    wait_until_dead(on.embedded)
    on.embedded.recover()


def _database_restarted(on: Stage) -> None:
    on.embedded.stop()
    on.embedded.start()


def _database_frozen(on: Stage) -> None:
    """As a disk that hangs: nobody is told that anything is wrong."""
    postmaster = on.embedded.start().pid
    # The one that makes the others first, so that none is made meanwhile.
    os.kill(postmaster, signal.SIGSTOP)
    frozen = [postmaster, *children(postmaster)]
    try:
        _send(frozen[1:], signal.SIGSTOP)
        time.sleep(FROZEN_SECONDS)
    finally:
        _send(frozen, signal.SIGCONT)


def _send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _receiver_away(on: Stage) -> None:
    on.receiver.close()
    time.sleep(AWAY_SECONDS)
    on.receiver.open()


FAULTS: dict[Kind, Callable[[Stage], None]] = {
    Kind.WORKER_KILLED: _worker_killed,
    Kind.API_KILLED: _api_killed,
    Kind.DATABASE_KILLED: _database_killed,
    Kind.DATABASE_RESTARTED: _database_restarted,
    Kind.DATABASE_FROZEN: _database_frozen,
    Kind.RECEIVER_AWAY: _receiver_away,
}
