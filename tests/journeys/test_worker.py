"""What was counted is evaluated, soon and exactly once: with workers and databases killed for real.

Each story is told twice: as it should be, and with the guard that makes it so taken away, to know
that the story could end badly.
"""

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from app.api.app import create_app
from app.config import Settings
from app.domain.alarm import Alarm, AlarmKind, AlarmState, Silence
from app.domain.evaluation import Evaluation
from app.domain.model import AlarmPolicy
from app.domain.verdict import Verdict
from app.domain.watch import Watch
from app.domain.window import pane_start
from app.evaluate import due
from app.evaluate.step import Step
from app.ingest.record import Submission, record
from app.ingest.reduce import Reduced
from app.stats.moments import Counts, Floats, Sums
from app.stats.reference import Reference
from app.storage import alarms, evaluations, models, schema, silences
from app.storage import detectors as watches
from app.storage.db import Database
from app.storage.embedded import Embedded
from app.storage.panes import PaneKey
from tests import fashion
from tests.evaluate.simulation import MINUTE, Life, life, quiet
from tests.factories import CONFUSION, LABELS, VERSION
from tests.journeys.processes import Server, until
from tests.journeys.sabotaged import OBITUARIES, POINTS, PORTION, ROUNDS

REFERENCE = Reference(np.array(CONFUSION))
MIX = REFERENCE.predicted / REFERENCE.n
# Another mix, which no detector takes long to see.
OTHER_MIX = [0.6, 0.3, 0.1]
ARMED = {"overdispersion": 1.0}
FRESH_SECONDS = 2.0


@contextmanager
def service(url: str) -> Iterator[tuple[TestClient, Database]]:
    """The API in this process, on a database that others work on."""
    database = Database(url)
    try:
        with TestClient(create_app(Settings(), database), base_url="http://localhost") as client:
            yield client, database
    finally:
        database.close()


@contextmanager
def workers(
    database: Database, size: int = 1, sabotage: str | None = None, **environ: str
) -> Iterator[list[Server]]:
    """Processes that evaluate and deliver, ready to be told what is due."""
    found = [
        Server("worker", sabotage=sabotage, SHIFTWATCH_DATABASE_URL=database.url, **environ)
        for _ in range(size)
    ]
    try:
        until(lambda: listening(database) == size or any(one.process.poll() for one in found))
        yield found
    finally:
        for one in found:
            if one.process.poll() is None:
                one.kill()


def asked(database: Database, query: str, **values: Any) -> Any:
    with database.begin() as conn:
        return conn.execute(text(query), values).scalar_one()


def listening(database: Database) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    return int(asked(database, f"{query} AND query LIKE 'LISTEN %'"))


def is_done(database: Database) -> bool:
    """Whether all that came in has been taken, and what was taken has been dealt with."""
    query = "SELECT count(*) FROM model WHERE due_at <= now()"
    return not asked(database, "SELECT count(*) FROM arrival") and not asked(database, query)


def register(client: TestClient | httpx.Client, *names: str) -> None:
    """Models whose detectors are armed at once, so that all they are fed can be found in them."""
    for name in names:
        body = {"labels": LABELS, "alarm": ARMED}
        client.put(f"/v1/models/{name}", json=body).raise_for_status()
        client.put(
            f"/v1/models/{name}/references/{VERSION}", json={"confusion": CONFUSION}
        ).raise_for_status()


def send(client: TestClient, name: str, start: datetime, counts: Counts) -> None:
    """Predictions of some panes, one row of counts for each."""
    answer = client.post(f"/v1/models/{name}/predictions", json=body_of(start, counts))
    assert answer.status_code == 202, answer.text


def body_of(start: datetime, counts: Counts) -> dict[str, Any]:
    stamps, labels = [], []
    for pane, row in enumerate(counts):
        labels += np.repeat(np.arange(len(row)), row).tolist()
        stamps += [(start + pane * MINUTE).isoformat()] * int(row.sum())
    return {"predicted": labels, "timestamps": stamps}


def watch_of(database: Database, name: str) -> Watch:
    with database.begin() as conn:
        return watches.find(conn, models.get(conn, name).id, VERSION) or Watch()


def learned(database: Database, name: str) -> list[int]:
    """The predictions that a model's detector has been fed, by label.

    All that it was ever fed is added up in its baseline, exactly, as long as it has not called.
    """
    watch = watch_of(database, name)
    assert watch.shifted is None
    if watch.shift is None:
        return [0] * len(LABELS)
    return [int(one) for one in watch.shift.baseline - 0.5 - REFERENCE.predicted]


def looked_at(database: Database, name: str) -> int:
    """How many predictions the newest evaluation of the longest window saw."""
    with database.begin() as conn:
        found = evaluations.latest(conn, models.get(conn, name).id, VERSION, "24h")
    return 0 if found is None else found.result.n


def a_while_ago(hours: int) -> datetime:
    return pane_start(datetime.now(UTC), MINUTE) - timedelta(hours=hours)


# Soon.


def test_an_evaluation_is_there_two_seconds_after_the_batch(tmp_path: Path) -> None:
    with Server("serve", SHIFTWATCH_DATA_DIR=str(tmp_path / "data")) as server:
        with httpx.Client(base_url=server.url) as client:
            register(client, "fraud")
            took = [freshness(client, sent) for sent in range(1, 10)]
        server.stop()

    assert max(took) < FRESH_SECONDS
    assert statistics.median(took) < FRESH_SECONDS * 3 / 4


def freshness(client: httpx.Client, sent: int) -> float:
    """Seconds until the worker has stored what it makes of one more prediction."""
    time.sleep(0.2)
    body = {"predicted": ["fraud"]}
    client.post("/v1/models/fraud/predictions", json=body).raise_for_status()

    def is_there() -> bool:
        found = client.get("/v1/models/fraud/evaluations", params={"limit": 1}).json()["items"]
        return bool(found) and found[0]["n"] == sent

    return until(is_there)


def a_commit_that_takes_its_time(one: Life) -> int:
    """How many predictions are looked at when one of two batches was committed late.

    It found the model due and did not mark it; then the model was evaluated without it, twice.
    """
    counts = np.array([1, 1, 1])
    one.evaluate()
    one.now += timedelta(seconds=5)
    key = PaneKey(one.model.id, one.version, pane_start(one.now, MINUTE), "hard")
    one.count([(key.start, Sums(counts))])
    with one.database.begin() as late:
        batch = Reduced(one.model, one.version, {key: Sums(counts)}, accepted=3)
        record(late, [Submission(batch)], 1, one.now)
        one.evaluate()
        one.now += timedelta(seconds=1)
        one.evaluate()
    one.now += timedelta(seconds=2)
    one.evaluate()
    return history(one)[0].result.n


def test_a_batch_whose_commit_takes_its_time_is_not_overlooked(database: Database) -> None:
    one = life(database, REFERENCE)

    assert a_commit_that_takes_its_time(one) == 6


def test_if_nobody_looked_for_it_it_would_wait_for_the_next_pane(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "mark_overlooked", lambda *_: None)
    one = life(database, REFERENCE)

    assert a_commit_that_takes_its_time(one) == 3


# Exactly once, whoever is killed.


@dataclass(frozen=True)
class Fate:
    """What was sent, what the detectors were fed, in how many panes, and what was looked at."""

    sent: list[int]
    learned: list[int]
    panes: int
    opened: int
    looked_at: int

    def is_exact(self) -> bool:
        return (self.learned, self.opened, self.looked_at) == (
            self.sent,
            self.panes,
            sum(self.sent),
        )


def deaths(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def fed_to_dying_workers(url: str, home: Path, sabotage: str) -> Fate:
    """A stream in the order of its events, each pane in three parts, while workers die."""
    rng = np.random.default_rng(1)
    obituaries = home / "obituaries"
    start, sent, batches = a_while_ago(hours=20), np.zeros(len(LABELS), dtype=np.int64), 0
    with service(url) as (client, database):
        register(client, "fraud")
        with workers(database, 1, sabotage, **{OBITUARIES: str(obituaries)}):
            while len(deaths(obituaries)) < len(POINTS) * ROUNDS:
                assert batches < 600, "the workers do not die: the test shows nothing"
                counts = rng.multinomial(8, MIX, size=3)
                send(client, "fraud", start + batches * MINUTE, counts)
                sent += counts.sum(axis=0)
                batches += 1
                time.sleep(0.03)
            until(lambda: is_done(database))
        assert sorted(deaths(obituaries)) == sorted(POINTS * ROUNDS)
        return Fate(
            sent=sent.tolist(),
            learned=learned(database, "fraud"),
            panes=batches + 2,
            opened=watch_of(database, "fraud").panes,
            looked_at=looked_at(database, "fraud"),
        )


def test_workers_killed_in_the_middle_of_evaluations_lose_and_double_nothing(
    clone: Callable[[], str], tmp_path: Path
) -> None:
    fate = fed_to_dying_workers(clone(), tmp_path, "leases,die")

    assert fate.is_exact(), fate


def test_taken_before_the_work_what_a_killed_worker_had_would_be_lost(
    clone: Callable[[], str], tmp_path: Path
) -> None:
    fate = fed_to_dying_workers(clone(), tmp_path, "leases,take,die")

    assert not fate.is_exact()
    assert sum(fate.learned) < sum(fate.sent)


def put_soft_model(client: TestClient) -> None:
    sample = fashion.outputs("good", "validation")
    body = {
        "probabilities": sample.rows[:2000].tolist(),
        "actual": sample.labels[:2000].tolist(),
    }
    labels = [f"label-{i}" for i in range(fashion.LABELS)]
    client.put("/v1/models/shop", json={"labels": labels, "alarm": ARMED}).raise_for_status()
    client.put(f"/v1/models/shop/references/{VERSION}", json=body).raise_for_status()


def send_rows(client: TestClient, start: datetime, mixes: Sequence[Floats], seed: int) -> None:
    """Fifteen softmax rows for each pane, of the label mix that it is given."""
    rng, pool = np.random.default_rng(seed), fashion.outputs("good", "test")
    rows = [fashion.draw(pool, mix, 15, rng).rows for mix in mixes]
    stamps = [(start + pane * MINUTE).isoformat() for pane in range(len(mixes)) for _ in range(15)]
    body = {"probabilities": np.concatenate(rows).tolist(), "timestamps": stamps}
    client.post("/v1/models/shop/predictions", json=body).raise_for_status()


def sent_twice(client: TestClient, start: datetime) -> None:
    """A stream that is quiet and then is not, each of its panes in two parts."""
    put_soft_model(client)
    even = np.full(fashion.LABELS, 0.1)
    mostly_shirts = np.where(np.arange(fashion.LABELS) == 6, 0.55, 0.05)
    for seed in (2, 3):
        send_rows(client, start, [even] * 80 + [mostly_shirts] * 40, seed)


def state_of_detectors(database: Database) -> Any:
    """All that is remembered of the stream, with every bit of its numbers."""
    return asked(database, "SELECT state FROM detector")


def undisturbed(url: str, start: datetime, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the detectors make of the stream if nobody is killed."""
    monkeypatch.setattr(due, "MOST_ARRIVALS", PORTION)
    with service(url) as (client, database):
        sent_twice(client, start)
        worker = due.Worker(database, "http://localhost")
        portions = 0
        while not is_done(database):
            assert worker.evaluate_next(datetime.now(UTC))
            portions += 1
            assert portions < 20
        return state_of_detectors(database)


def test_after_all_the_killing_the_detectors_are_what_they_would_be_bit_by_bit(
    clone: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, obituaries = a_while_ago(hours=10), tmp_path / "obituaries"
    expected = undisturbed(clone(), start, monkeypatch)
    with service(clone()) as (client, database):
        # All of it is there before anybody looks, so that it is cut into the same portions.
        sent_twice(client, start)
        sabotage = "leases,portions,die"
        with workers(database, 1, sabotage, **{OBITUARIES: str(obituaries)}):
            until(lambda: is_done(database))
        found = state_of_detectors(database)

    assert set(deaths(obituaries)) == set(POINTS)
    assert (expected["panes"], expected["shifted"] is not None) == (120, True)
    assert found == expected


# Many workers, many models.


def fed_to_many_workers(url: str, sabotage: str) -> list[Fate]:
    """Streams of four models at once, with two workers who both are told of each batch."""
    rng, names = np.random.default_rng(4), ["a", "b", "c", "d"]
    start, sent = a_while_ago(hours=20), {name: np.zeros(3, dtype=np.int64) for name in names}
    with service(url) as (client, database):
        register(client, *names)
        with workers(database, 2, sabotage):
            for batch in range(25):
                for name in names:
                    counts = rng.multinomial(8, MIX, size=3)
                    send(client, name, start + batch * MINUTE, counts)
                    sent[name] += counts.sum(axis=0)
                time.sleep(0.05)
            until(lambda: is_done(database))
        return [
            Fate(
                sent=sent[name].tolist(),
                learned=learned(database, name),
                panes=27,
                opened=watch_of(database, name).panes,
                looked_at=looked_at(database, name),
            )
            for name in names
        ]


def test_two_workers_feed_the_detectors_of_four_models_each_batch_once(
    clone: Callable[[], str],
) -> None:
    fates = fed_to_many_workers(clone(), "linger")

    assert all(fate.is_exact() for fate in fates), fates


def test_without_locks_they_would_undo_each_others_work(clone: Callable[[], str]) -> None:
    """Sooner or later: they must be at the same model at the same moment."""

    def is_undone() -> bool:
        fates = fed_to_many_workers(clone(), "take,lock,lease")
        return any(sum(fate.learned) < sum(fate.sent) for fate in fates)

    assert any(is_undone() for _ in range(5))


# Models that nobody wants to evaluate.

BAD = ("deadly", "slow", "poisoned")
GOOD = ("good-1", "good-2", "good-3", "good-4")


def state_of(database: Database, name: str, column: str) -> Any:
    return asked(database, f"SELECT {column} FROM model WHERE name = :name", name=name)


def are_evaluated(database: Database, names: Sequence[str]) -> bool:
    return all(looked_at(database, name) == 3 for name in names)


@contextmanager
def among_bad_ones(url: str, sabotage: str) -> Iterator[tuple[Database, list[Server]]]:
    """Good models that have become due just after some bad ones, and three workers."""
    with service(url) as (client, database):
        register(client, *BAD, *GOOD)
        # So that only what is sent makes them due, and in that order.
        with database.begin() as conn:
            conn.execute(text("UPDATE model SET due_at = NULL"))
        with workers(database, 3, sabotage) as found:
            for name in (*BAD, *GOOD):
                send(client, name, a_while_ago(hours=1), np.array([[1, 1, 1]]))
            yield database, found


def test_a_model_that_is_slow_fails_or_kills_does_not_delay_the_others(
    clone: Callable[[], str],
) -> None:
    with among_bad_ones(clone(), "poison") as (database, found):
        took = until(lambda: are_evaluated(database, GOOD))
        until(lambda: state_of(database, "poisoned", "failures") == 1)
        first_pause = state_of(database, "poisoned", "leased_until - now()")
        until(lambda: state_of(database, "poisoned", "failures") == 2)
        second_pause = state_of(database, "poisoned", "leased_until - now()")
        until(lambda: are_evaluated(database, ["slow"]))
        dead = [one for one in found if one.process.poll() is not None]
        reserved_for = state_of(database, "deadly", "leased_until - now()")

    assert took < 3.0
    assert timedelta(seconds=3) < first_pause <= timedelta(seconds=5)
    assert timedelta(seconds=8) < second_pause <= timedelta(seconds=10)
    assert len(dead) == 1
    # The next worker is not lost to it before this is over.
    assert timedelta(0) < reserved_for < timedelta(seconds=60)


def test_without_the_lease_a_deadly_model_would_kill_all_workers(
    clone: Callable[[], str],
) -> None:
    with among_bad_ones(clone(), "poison,lease") as (database, found):
        until(lambda: all(one.process.poll() is not None for one in found))

        assert not are_evaluated(database, GOOD)


def test_what_comes_in_for_a_model_that_was_put_off_does_not_bring_it_forward(
    database: Database,
) -> None:
    one = life(database, REFERENCE)
    with database.begin() as conn:
        models.postpone(conn, one.model.id, one.now)

    one.count([(one.now, Sums(np.array([1, 1, 1])))])

    assert not one.worker.evaluate_next(one.now + timedelta(seconds=4))
    assert one.worker.evaluate_next(one.now + timedelta(seconds=5))


# By the clock alone.


def ticks(one: Life, minutes: int) -> None:
    """Let time go by, a minute at a time, with nothing coming in."""
    for _ in range(minutes):
        one.now += MINUTE
        assert looks(one) < 20, f"busy with nothing at {one.now}"


def looks(one: Life) -> int:
    """How many evaluations it takes until nothing is due, or more than anybody needs."""
    for done in range(20):
        if not one.worker.evaluate_next(one.now):
            return done
    return 20


def history(one: Life) -> list[Evaluation]:
    with one.database.begin() as conn:
        return evaluations.page(conn, one.model.id, one.version, "1h", limit=200)


def open_alarms(one: Life) -> dict[AlarmKind, Alarm]:
    with one.database.begin() as conn:
        return {kind: own for (_, kind), own in alarms.open_of(conn, one.model.id).items()}


def quiet_life(database: Database, **policy: Any) -> Life:
    one = life(database, REFERENCE, alarm=AlarmPolicy(**{**ARMED, **policy}))
    one.live(quiet(REFERENCE, 100, 30, np.random.default_rng(5)))
    return one


def shifted_life(database: Database, **policy: Any) -> Life:
    one = quiet_life(database, **policy)
    one.live(np.random.default_rng(6).multinomial(100, OTHER_MIX, size=10))
    return one


def test_a_window_that_nothing_comes_into_empties_by_itself(database: Database) -> None:
    one = quiet_life(database)

    ticks(one, 70)

    newest_first = [found.result.n for found in history(one)]
    assert newest_first == sorted(newest_first)
    assert (newest_first[0], newest_first[-1]) == (0, 3000)
    assert history(one)[0].result.verdict is Verdict.NO_DATA
    assert history(one)[0].evaluated_at == one.now


def test_without_the_clock_it_would_stay_as_it_was(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated = models.evaluated
    monkeypatch.setattr(
        models, "evaluated", lambda conn, own, _, now: evaluated(conn, own, None, now)
    )
    one = quiet_life(database)

    ticks(one, 70)

    assert [found.result.n for found in history(one)] == [3000]


def test_that_nothing_comes_is_an_alarm_until_something_comes(database: Database) -> None:
    one = quiet_life(database)
    ticks(one, 58)
    assert AlarmKind.INGEST_STOPPED not in open_alarms(one)

    ticks(one, 3)
    stopped = open_alarms(one)[AlarmKind.INGEST_STOPPED]
    one.live(quiet(REFERENCE, 100, 1, np.random.default_rng(7)))

    assert stopped.state is AlarmState.FIRING
    assert stopped.onset is not None
    assert stopped.fired_at == stopped.onset + timedelta(hours=1)
    assert open_alarms(one) == {}


def hours_without_a_prediction(one: Life, hours: int) -> list[AlarmState]:
    """The states that the alarm about the mix is in after each hour of silence."""
    found = []
    for _ in range(hours):
        ticks(one, 60)
        found.append(open_alarms(one)[AlarmKind.SHIFT].state)
    return found


def test_while_nothing_comes_no_alarm_about_the_mix_fires(database: Database) -> None:
    one = shifted_life(database, min_duration=timedelta(minutes=90))

    states = hours_without_a_prediction(one, 2)

    assert AlarmKind.INGEST_STOPPED in open_alarms(one)
    assert states == [AlarmState.PENDING] * 2


def test_if_it_were_not_blind_it_would_fire_for_a_mix_that_nobody_sends(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Step, "is_blind", lambda *_: False)
    one = shifted_life(database, min_duration=timedelta(minutes=90))

    states = hours_without_a_prediction(one, 2)

    assert states[-1] is AlarmState.FIRING


def test_while_nothing_comes_no_alarm_about_the_mix_ends(database: Database) -> None:
    one = shifted_life(database)
    fired = open_alarms(one)[AlarmKind.SHIFT]

    states = hours_without_a_prediction(one, 3)
    unchanged = open_alarms(one)[AlarmKind.SHIFT]
    one.live(quiet(REFERENCE, 100, 60, np.random.default_rng(8)))

    assert states == [AlarmState.FIRING] * 3
    assert unchanged == fired
    assert open_alarms(one) == {}


def test_a_reminder_waits_while_nothing_comes(database: Database) -> None:
    one = shifted_life(database)

    ticks(one, 6 * 60)

    assert AlarmKind.INGEST_STOPPED in open_alarms(one)


def test_a_reminder_waits_for_the_end_of_a_silence(database: Database) -> None:
    one = shifted_life(database, no_data_after=None, ingest_stopped_after=None)
    silence = Silence({"model": "m"}, one.now + timedelta(hours=12), "ann", "", one.now)
    with database.begin() as conn:
        silences.create(conn, silence)

    ticks(one, 6 * 60)

    assert AlarmKind.SHIFT in open_alarms(one)


def test_a_reminder_in_the_middle_of_a_pane_is_told_once(database: Database) -> None:
    one = shifted_life(database, renotify=timedelta(minutes=1, seconds=30))

    one.now += timedelta(minutes=1)
    assert looks(one) < 20
    one.now += timedelta(seconds=30)

    assert looks(one) < 20


# With the database killed.


class Sender:
    """Sends a batch every now and then until told to stop, each until it is acknowledged."""

    def __init__(self, client: TestClient, start: datetime) -> None:
        self.sent = np.zeros(len(LABELS), dtype=np.int64)
        self.batches = 0
        self._client, self._start = client, start
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        rng = np.random.default_rng(9)
        while not self._stop.wait(0.05):
            counts = rng.multinomial(8, MIX, size=3)
            body = body_of(self._start + self.batches * MINUTE, counts)
            until(lambda body=body: self._is_counted(body))  # type: ignore[misc]
            self.sent += counts.sum(axis=0)
            self.batches += 1

    def _is_counted(self, body: dict[str, Any]) -> bool:
        keyed = {**body, "batch_id": f"batch-{self.batches}"}
        answer = self._client.post("/v1/models/fraud/predictions", json=keyed)
        assert answer.status_code in (202, 503), answer.text
        return answer.status_code == 202


def migrated(url: str) -> str:
    database = Database(url)
    schema.upgrade(database)
    database.close()
    return url


UNDER_WAY = "SELECT count(*) FROM model WHERE leased_until > now()"


def fed_while_the_database_is_killed(home: Path, sabotage: str) -> Fate:
    """The database is killed twice, each time in the middle of an evaluation."""
    with (
        Embedded(home / "data") as embedded,
        service(migrated(embedded.start().url)) as (client, database),
    ):
        register(client, "fraud")
        with workers(database, 1, sabotage):
            sender = Sender(client, a_while_ago(hours=20))
            until(lambda: looked_at(database, "fraud") > 0)
            for _ in range(2):
                until(lambda: asked(database, UNDER_WAY) == 1)
                os.kill(embedded.start().pid, signal.SIGKILL)
                until(lambda: not embedded.alive())
                embedded.recover()
                until(lambda: listening(database) == 1)
            sender.finish()
            until(lambda: is_done(database))
        return Fate(
            sent=sender.sent.tolist(),
            learned=learned(database, "fraud"),
            panes=sender.batches + 2,
            opened=watch_of(database, "fraud").panes,
            looked_at=looked_at(database, "fraud"),
        )


def test_a_worker_heals_when_the_database_was_killed_and_nothing_is_lost_or_doubled(
    tmp_path: Path,
) -> None:
    fate = fed_while_the_database_is_killed(tmp_path, "leases,linger")

    assert fate.is_exact(), fate


def test_taken_before_the_work_it_would_be_lost_with_the_database(tmp_path: Path) -> None:
    fate = fed_while_the_database_is_killed(tmp_path, "leases,linger,take")

    assert sum(fate.learned) < sum(fate.sent)
