"""The service made worse: slow where it is vulnerable, or with one of its guards taken away.

`python -m tests.journeys.sabotaged slow,keys api`
"""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import text

from app import cli, deliver
from app.domain.model import Model
from app.errors import Unavailable
from app.evaluate import due
from app.ingest.record import Entry, Outcome, Receipt, Submission
from app.ingest.recorder import Recorder
from app.processes import ends_with_parent
from app.storage import arrivals, batches, detectors, evaluations, models
from app.storage.db import Connection, Database

# Where a worker dies in the middle of an evaluation, in the order that it gets there.
POINTS = ("taken", "stepped", "evaluated", "before the commit", "after the commit")
ROUNDS = 1
SEED = 20261117
NOTICES_TO_DIE_FOR = 3
# A file that is told of every death.
OBITUARIES = "SABOTAGE_OBITUARIES"

# A few parts at a time, so that there are many evaluations to die in.
PORTION = 40
# So that nobody waits a minute for what a dead worker had reserved.
SHORT_LEASE = timedelta(seconds=0.2)
LINGER_SECONDS = 0.4
SLOW_SECONDS = 3.0


def slow_to_answer() -> None:
    """Leave time to be killed between the commit and the answer."""
    answer = Recorder._answer

    def late(self: Recorder, *what: Any) -> None:
        time.sleep(0.1)
        answer(self, *what)

    Recorder._answer = late  # type: ignore[assignment]


def without_keys() -> None:
    """Forget which batches were counted."""

    def claim(_: Connection, some: Sequence[batches.Batch], now: datetime) -> dict[Any, Any]:
        return {}

    batches.claim = claim  # type: ignore[assignment]


def without_waiting_for_the_commit() -> None:
    """Answer a batch as stored although its commit failed."""
    attempt = Recorder._attempt

    def hopeful(self: Recorder, group: Sequence[Entry]) -> list[Outcome]:
        try:
            return attempt(self, group)
        except Unavailable:
            # Nobody sends anything but batches where this is done.
            batches = [one.reduced for one in group if isinstance(one, Submission)]
            return [Receipt(one.version, one.accepted, 0, 0) for one in batches]

    Recorder._attempt = hopeful  # type: ignore[method-assign]


# The worker.


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_again_and_again() -> None:
    """Die in the middle of evaluations, each life at another point; the last life is a whole one.

    Being born again by a fork takes no time; nothing has been started yet that a fork would break.
    """
    chance = random.Random(SEED)
    for point in POINTS * ROUNDS:
        time = chance.choice([1, 2])
        if is_reborn(point):
            die_at(point, time)
            return


def killed_after_each_notice() -> None:
    """The same, between sending a notice and noting that it was sent."""
    for _ in range(NOTICES_TO_DIE_FOR):
        if is_reborn("sent"):
            deliver._settle = lambda *_: die()
            return


def is_reborn(point: str) -> bool:
    """True in a child; False in its parent, when the child has been killed."""
    tie = ends_with_parent(signal.SIGKILL)
    child = os.fork()
    if child == 0:
        tie()
        return True
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        sys.exit(os.waitstatus_to_exitcode(status))
    with Path(os.environ[OBITUARIES]).open("a") as file:
        file.write(f"{point}\n")
    return False


def die_at(point: str, time: int) -> None:
    """Die when that point is reached for that time, in evaluations that have taken something."""
    # Of each thread, because those that deliver have transactions, too.
    own = threading.local()
    left = time

    def passes(here: str) -> None:
        nonlocal left
        if here == point and getattr(own, "busy", False):
            left -= 1
            if left == 0:
                die()

    take, begin = arrivals.take, Database.begin

    def noted_take(*what: Any, **how: Any) -> Any:
        found = take(*what, **how)
        own.busy = bool(found.by_version)
        passes("taken")
        return found

    def then(do: Callable[..., None], here: str) -> Callable[..., None]:
        def done(*what: Any) -> None:
            do(*what)
            passes(here)

        return done

    @contextmanager
    def noted_begin(self: Database) -> Iterator[Connection]:
        with begin(self) as conn:
            yield conn
        passes("after the commit")
        own.busy = False

    arrivals.take = noted_take
    detectors.put = then(detectors.put, "stepped")
    evaluations.put = then(evaluations.put, "evaluated")
    models.evaluated = then(models.evaluated, "before the commit")
    Database.begin = noted_begin  # type: ignore[method-assign]


def in_portions() -> None:
    due.MOST_ARRIVALS = PORTION


def with_short_leases() -> None:
    models.LEASE = SHORT_LEASE
    # A request takes longer than an evaluation.
    deliver.LEASE = 4 * SHORT_LEASE


def lingering() -> None:
    """Leave time to be killed between what an evaluation found and its commit."""
    evaluated = models.evaluated

    def late(*what: Any, **how: Any) -> None:
        time.sleep(LINGER_SECONDS)
        evaluated(*what, **how)

    models.evaluated = late


def taking_before_the_work() -> None:
    """Take arrivals in a transaction of their own: whoever dies afterwards has lost them."""
    take = arrivals.take

    def at_once(conn: Connection, model_id: int, limit: int) -> Any:
        with conn.engine.begin() as own:
            return take(own, model_id, limit)

    arrivals.take = at_once


def without_locks() -> None:
    """Evaluate a model while others do, too, with time to do so between reading and writing."""
    lock, find = models.lock, detectors.find

    def unlocked(conn: Connection, model_id: int) -> Any:
        with conn.engine.begin() as own:
            return lock(own, model_id)

    def found_long_ago(conn: Connection, model_id: int, version: str) -> Any:
        found = find(conn, model_id, version)
        time.sleep(LINGER_SECONDS)
        return found

    models.lock = unlocked
    detectors.find = found_long_ago


_DUE = text("SELECT id FROM model WHERE due_at <= :now ORDER BY due_at, id LIMIT 1")


def without_leases() -> None:
    """Take the first model that is due, whoever else has it already."""

    def first(conn: Connection, now: datetime) -> int | None:
        found: int | None = conn.execute(_DUE, {"now": now}).scalar_one_or_none()
        return found

    models.lease = first


def spoilt_by_its_name(model: Model) -> None:
    """Three kinds of models that nobody wants to evaluate."""
    if model.name.startswith("deadly"):
        die()
    if model.name.startswith("slow"):
        time.sleep(SLOW_SECONDS)
    if model.name.startswith("poisoned"):
        raise RuntimeError("there is poison in it")


def with_poison() -> None:
    lock = models.lock

    def spoilt(*what: Any, **how: Any) -> Any:
        found = lock(*what, **how)
        if found is not None:
            spoilt_by_its_name(found[0])
        return found

    models.lock = spoilt


SABOTAGE = {
    "slow": slow_to_answer,
    "keys": without_keys,
    "commit": without_waiting_for_the_commit,
    "portions": in_portions,
    "leases": with_short_leases,
    "linger": lingering,
    "take": taking_before_the_work,
    "lock": without_locks,
    "lease": without_leases,
    "poison": with_poison,
    "die": killed_again_and_again,
    "die-sent": killed_after_each_notice,
}

if __name__ == "__main__":
    for kind in sys.argv[1].split(","):
        SABOTAGE[kind]()
    sys.exit(cli.main(sys.argv[2:]))
