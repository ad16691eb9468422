"""What is too old is forgotten, and nothing else: by partition, without a sum going wrong."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, insert, select, text, update

from app import metrics, prune
from app.api.app import create_app
from app.config import Settings
from app.domain.model import AlarmPolicy
from app.domain.notice import Event, Shape
from app.domain.window import EPOCH, Window, WindowKind, pane_start
from app.ingest import record as recording
from app.ingest.contributions import Fate
from app.ingest.record import Receipt, Submission, needed_partitions, record
from app.ingest.recorder import Recorder
from app.ingest.reduce import Reduced
from app.prune import Purged, Report
from app.stats import moments
from app.stats.moments import Sums
from app.stats.reference import from_confusion
from app.storage import (
    arrivals,
    batches,
    db,
    deliveries,
    detectors,
    evaluations,
    horizon,
    models,
    panes,
    partitions,
    predictions,
    rollups,
    sources,
    tables,
    webhooks,
    writers,
)
from app.storage.batches import Batch, BatchKey
from app.storage.db import Connection, Database
from app.storage.deliveries import Delivered
from app.storage.panes import Kind, PaneKey
from app.storage.predictions import KeptPredictions
from app.storage.rollups import Keep, Stream
from app.storage.sources import SourceKey
from tests.evaluate.simulation import Life, life
from tests.retention import Fleet

SEED = 20261118
REFERENCE = from_confusion(np.array([[900, 60], [100, 940]]))
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
JANUARY = datetime(2027, 1, 1, tzinfo=UTC)
FEBRUARY, MARCH = JANUARY.replace(month=2), JANUARY.replace(month=3)
# January's panes are old by then, and it is closed: 31 days and the one that is always open.
IN_MARCH = datetime(2027, 3, 5, 12, 0, tzinfo=UTC)
PATIENT = AlarmPolicy(no_data_after=None, ingest_stopped_after=None)
SETTINGS = Settings()
WEEK = (Window("7d", WindowKind.SLIDING, length=7 * DAY),)


@pytest.fixture
def own(clone: Callable[[], str]) -> Iterator[Database]:
    """A database in which partitions come and go."""
    database = Database(clone(), pool_size=8)
    yield database
    database.close()


@pytest.fixture
def client(own: Database) -> Iterator[TestClient]:
    with TestClient(create_app(SETTINGS, own), base_url="http://localhost") as found:
        yield found


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for locks longer than it takes to see that they are held."""
    monkeypatch.setattr(db, "SHORT_WAIT", "100ms")
    monkeypatch.setattr(db, "PAUSES", (0.05,))


def names(database: Database, table: str) -> list[str]:
    with database.begin() as conn:
        return [one.name for one in partitions.existing(conn, table)]


def of_table(report: Report, table: str) -> list[str | None]:
    return [one.partition for one in report.purged if one.table == table]


def count(database: Database, table: Any) -> int:
    with database.begin() as conn:
        found: int = conn.execute(select(func.count()).select_from(table)).scalar_one()
    return found


def a_life(database: Database, **settings: Any) -> Life:
    one = life(database, REFERENCE, **{"alarm": PATIENT, **settings})
    one.now = JANUARY
    return one


def put(one: Life, *starts: datetime, size: int = 10) -> Any:
    """So many predictions of each of these panes, counted at the life's own time."""
    counts = np.array([size - size // 2, size // 2])
    keyed = {PaneKey(one.model.id, "v1", start, "hard"): Sums(counts) for start in starts}
    submission = Submission(Reduced(one.model, "v1", keyed, size * len(starts)))
    with one.database.begin() as conn:
        partitions.ensure(conn, needed_partitions([submission], one.now))
        return record(conn, [submission], 0, one.now)[0]


def total(one: Life, start: datetime, end: datetime) -> int:
    with one.database.begin() as conn:
        own = Stream(one.model.id, "v1", 2, one.pane, horizon=horizon.get(conn))
        return sum(part.n for part in rollups.total(conn, own, start, end).values())


# Sums.


@dataclass(slots=True)
class Ledger:
    """A stream of panes in the database, and the same in memory."""

    database: Database
    pane: timedelta
    model_id: int
    rng: np.random.Generator
    own: list[tuple[datetime, Kind, Sums]] = field(default_factory=list)

    def add(self, first: datetime, end: datetime, bursts: int = 12) -> None:
        """Bursts of panes with hard and soft predictions, on two shards, and gaps between them."""
        for _ in range(bursts):
            begin = pane_start(first + (end - first) * float(self.rng.random()), self.pane)
            sums: dict[PaneKey, Sums] = {}
            for i in self.rng.permutation(90)[:12].tolist():
                start = begin + i * self.pane
                if not first <= start < end:
                    continue
                rows = self.rng.dirichlet(np.full(2, 0.3), 4)
                kind: Kind = "soft" if self.rng.random() < 0.5 else "hard"
                soft = rows if kind == "soft" else None
                part = moments.sums(2, moments.argmax(rows), soft)
                sums[PaneKey(self.model_id, "v1", start, kind)] = part
                self.own.append((start, kind, part))
            if sums:
                with self.database.begin() as conn:
                    starts = {key.start for key in sums}
                    partitions.ensure(conn, [partitions.containing("pane", at) for at in starts])
                    panes.add(conn, sums, int(self.rng.integers(2)), first)

    def stream(self, conn: Connection) -> Stream:
        return Stream(self.model_id, "v1", 2, self.pane, horizon=horizon.get(conn))

    def keep(self, first: datetime, end: datetime) -> None:
        """As evaluations of long windows would."""
        keep = Keep(first, end)
        with self.database.begin() as conn:
            partitions.ensure(conn, rollups.needed_partitions(keep))
            rollups.total(conn, self.stream(conn), first, end, keep=keep)

    def assert_sums(self, start: datetime, end: datetime) -> None:
        with self.database.begin() as conn:
            stream = self.stream(conn)
            first, last = rollups.covering(stream, start, end)
            found = rollups.total(conn, stream, start, end)
        assert first <= start
        assert end <= last
        assert max(start - first, last - end) < 60 * self.pane
        inside = [(kind, one) for at, kind, one in self.own if first <= at < last]
        for kind in ("hard", "soft"):
            parts = [one for own, one in inside if own == kind]
            wanted = moments.total(parts) if parts else None
            assert_same(found.get(kind), wanted)


def assert_same(found: Sums | None, wanted: Sums | None) -> None:
    if found is None or wanted is None:
        assert (0 if found is None else found.n) == (0 if wanted is None else wanted.n)
        return
    assert found.counts.tolist() == wanted.counts.tolist()
    if found.soft is None or wanted.soft is None:
        assert found.soft is wanted.soft
        return
    assert found.soft.cells.tolist() == wanted.soft.cells.tolist()
    for name in ("prob", "outer", "score", "score_squared", "score_by_label"):
        assert np.allclose(getattr(found.soft, name), getattr(wanted.soft, name), rtol=1e-12)


# Hours that fit months, blocks of seven hours and of two days that do not, and blocks that are
# longer than a month.
PANES = [MINUTE, 7 * MINUTE, 48 * MINUTE, DAY]


def ledger(database: Database, pane: timedelta, seed: int) -> Ledger:
    one = life(database, REFERENCE, pane=pane, alarm=PATIENT)
    return Ledger(database, pane, one.model.id, np.random.default_rng([SEED, seed]))


def prune_at(database: Database, now: datetime, **keep: int) -> Report:
    periods: dict[str, Any] = {f"keep_{table}_days": days for table, days in keep.items()}
    return prune.prune(database, Settings(**periods), now)


@pytest.mark.parametrize("pane", PANES, ids=str)
@pytest.mark.parametrize("kept", [False, True])
def test_sums_are_the_same_after_pruning_as_before(
    own: Database, pane: timedelta, kept: bool
) -> None:
    stream = ledger(own, pane, seed=1)
    begin, months = JANUARY - 92 * DAY, 7
    end = begin + months * 31 * DAY
    for _ in range(2):
        stream.add(begin, end, bursts=60)
    if kept:
        stream.keep(begin - 70 * DAY, end)

    for now in (JANUARY, IN_MARCH, IN_MARCH + 62 * DAY):
        prune_at(own, now)
        length = (end - begin) // pane
        for first, last in np.sort(stream.rng.integers(0, length + 1, (12, 2)), axis=1).tolist():
            stream.assert_sums(begin + first * pane, begin + last * pane)
        block = 60 * pane
        aligned = pane_start(begin, block)
        stream.assert_sums(aligned, aligned + ((end - aligned) // block) * block)
        if kept:
            stream.keep(begin, now - DAY)

    assert len(names(own, "pane")) <= 3


def test_spans_of_whole_blocks_stay_as_they_are(own: Database) -> None:
    stream = ledger(own, MINUTE, seed=2)
    stream.add(JANUARY, MARCH)
    with own.begin() as conn:
        before = stream.stream(conn)

    prune_at(own, IN_MARCH)

    with own.begin() as conn:
        after = stream.stream(conn)
    span = (JANUARY + 5 * HOUR, JANUARY + 99 * HOUR)
    assert (before.horizon.coarse, after.horizon.coarse) == (EPOCH, FEBRUARY)
    assert rollups.covering(after, *span) == span
    inside = (JANUARY + 5 * HOUR + MINUTE, JANUARY + 98 * HOUR + MINUTE)
    assert rollups.covering(before, *inside) == inside
    assert rollups.covering(after, *inside) == span
    assert rollups.covering(after, FEBRUARY + MINUTE, MARCH) == (FEBRUARY + MINUTE, MARCH)
    assert rollups.covering(after, inside[0], FEBRUARY + MINUTE) == (span[0], FEBRUARY + MINUTE)


@pytest.mark.parametrize(("guarded", "found"), [(True, 20), (False, 30)])
def test_a_block_that_the_horizon_runs_through_is_not_counted_twice(
    own: Database, monkeypatch: pytest.MonkeyPatch, guarded: bool, found: int
) -> None:
    # Seven hours from January's last evening on: kept whole, then cut by the horizon.
    pane = 7 * MINUTE
    block = pane_start(FEBRUARY, 60 * pane)
    one = a_life(own, pane=pane, windows=WEEK)
    one.now = FEBRUARY + DAY
    put(one, block, block + 59 * pane)
    one.evaluate()
    Ledger(own, pane, one.model.id, np.random.default_rng(SEED)).keep(block, block + 60 * pane)
    assert block < FEBRUARY < block + 59 * pane
    if not guarded:
        monkeypatch.setattr(rollups, "_around", lambda *_: set())
        monkeypatch.setattr(rollups, "_blocks_with_panes", lambda *_: set())

    prune_at(own, IN_MARCH)

    assert total(one, block, block + 60 * pane) == found


def test_the_horizon_passes_months_without_a_pane(own: Database) -> None:
    pane = 7 * MINUTE
    block = pane_start(FEBRUARY, 60 * pane)
    one = a_life(own, pane=pane, windows=WEEK)
    one.now = FEBRUARY + DAY
    # In February's part of a block that begins in January, which has no partition.
    put(one, block + 59 * pane)
    one.evaluate()
    Ledger(own, pane, one.model.id, np.random.default_rng(SEED)).keep(block, block + 60 * pane)

    prune_at(own, IN_MARCH)

    with own.begin() as conn:
        assert horizon.get(conn).coarse == FEBRUARY
    assert names(own, "pane") == ["pane_2027_02_01"]
    assert total(one, block, block + 60 * pane) == 10


def test_more_for_a_month_that_is_gone_is_added_to_its_blocks(own: Database) -> None:
    # Nobody who knows the horizon does this; a process of an older release might.
    one = a_life(own)
    put(one, JANUARY + HOUR)
    one.evaluate()
    prune_at(own, IN_MARCH)
    late = {PaneKey(one.model.id, "v1", JANUARY + HOUR + MINUTE, "hard"): Sums(np.array([3, 4]))}
    with own.begin() as conn:
        partitions.ensure(conn, [partitions.containing("pane", JANUARY)])
        panes.add(conn, late, 0, IN_MARCH)

    report = prune_at(own, IN_MARCH + HOUR)

    assert of_table(report, "pane") == ["pane_2027_01_01"]
    assert total(one, JANUARY, FEBRUARY) == 17


def test_an_installation_that_was_off_for_a_year_is_pruned_and_goes_on(own: Database) -> None:
    one = a_life(own, windows=(*WEEK, Window("all", WindowKind.VERSION)))
    put(one, JANUARY, JANUARY + 40 * DAY)
    one.evaluate()
    one.now = JANUARY + 380 * DAY

    first = prune_at(own, one.now)
    put(one, one.now)
    one.evaluate()
    again = prune_at(own, one.now + HOUR)

    assert of_table(first, "pane") == ["pane_2027_01_01", "pane_2027_02_01"]
    assert of_table(again, "pane") == []
    assert total(one, JANUARY, one.now + DAY) == 30
    with own.begin() as conn:
        found = evaluations.latest(conn, one.model.id, "v1", "all")
    assert found is not None
    assert found.result.n == 30


def test_blocks_are_forgotten_in_their_turn_and_windows_begin_where_they_do(own: Database) -> None:
    one = a_life(own, windows=(Window("all", WindowKind.VERSION),))
    put(one, JANUARY, JANUARY + 40 * DAY, JANUARY + 70 * DAY)
    one.evaluate()
    one.now = JANUARY + 151 * DAY

    report = prune_at(own, one.now, rollups=90)
    put(one, one.now)
    one.evaluate()

    # The version was live before any of it: of older months only the blocks that were looked at.
    assert of_table(report, "rollup")[-2:] == ["rollup_2027_01_01", "rollup_2027_02_01"]
    assert total(one, JANUARY, one.now + DAY) == 20
    with own.begin() as conn:
        found = evaluations.latest(conn, one.model.id, "v1", "all")
    assert found is not None
    assert (found.start, found.result.n) == (MARCH, 20)
    assert "rollup_2027_02_01" not in names(own, "rollup")


# What comes late.


def late_batch(one: Life, at: datetime) -> Submission:
    key = PaneKey(one.model.id, "v1", at, "hard")
    fresh = PaneKey(one.model.id, "v1", pane_start(one.now, one.pane), "hard")
    part = Sums(np.array([2, 0]))
    kept = KeptPredictions(["old", "new"], [at, one.now], [0, 0])
    return Submission(
        Reduced(one.model, "v1", {key: part, fresh: part}, 4, kept=kept), "key", b"content"
    )


def submit(one: Life, submission: Submission) -> Any:
    with one.database.begin() as conn:
        partitions.ensure(conn, needed_partitions([submission], one.now))
        return record(conn, [submission], 0, one.now)[0]


def test_what_comes_for_a_closed_month_is_late_whatever_is_allowed(own: Database) -> None:
    one = a_life(own, keep_ids=True)
    put(one, JANUARY + HOUR)
    one.evaluate()
    prune_at(own, IN_MARCH)
    one.now = IN_MARCH

    batch = late_batch(one, FEBRUARY - MINUTE)
    receipts = [submit(one, batch), submit(one, batch)]

    once = Receipt("v1", accepted=2, rejected=0, late=2)
    again = Receipt("v1", accepted=2, rejected=0, late=2, duplicate=True)
    assert receipts == [once, again]
    assert (total(one, JANUARY, FEBRUARY), total(one, FEBRUARY, IN_MARCH + DAY)) == (10, 2)
    with own.begin() as conn:
        late = conn.execute(select(tables.late.c.predictions)).scalars().all()
        ids = conn.execute(select(tables.prediction.c.id)).scalars().all()
        pending = arrivals.pending(conn, one.model.id, "v1")
    assert (late, ids) == ([2], ["new"])
    assert pending == {pane_start(IN_MARCH, MINUTE)}


def test_the_control_without_asking_the_horizon_it_is_in_no_window(
    own: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_without_closed", lambda _, submissions, __: submissions)
    one = a_life(own)
    put(one, JANUARY + HOUR)
    one.evaluate()
    prune_at(own, IN_MARCH)
    one.now = IN_MARCH

    receipt = submit(one, late_batch(one, FEBRUARY - MINUTE))

    # It says that it was counted, and it was not.
    assert receipt == Receipt("v1", accepted=4, rejected=0, late=0)
    assert total(one, JANUARY, FEBRUARY) == 10


def test_what_is_late_but_not_that_late_is_counted(own: Database) -> None:
    one = a_life(own)
    put(one, FEBRUARY)
    one.evaluate()
    prune_at(own, IN_MARCH)
    one.now = IN_MARCH

    assert submit(one, late_batch(one, FEBRUARY)) == Receipt("v1", 4, 0, 0)
    assert total(one, FEBRUARY, FEBRUARY + MINUTE) == 12


def test_a_month_is_not_closed_while_somebody_counts_into_it(own: Database) -> None:
    one = a_life(own)
    put(one, JANUARY + HOUR)
    one.evaluate()
    one.now = IN_MARCH
    batch = late_batch(one, JANUARY + HOUR)

    with own.begin() as conn:
        partitions.ensure(conn, needed_partitions([batch], one.now))
    with own.begin() as conn:
        (receipt,) = record(conn, [batch], 0, one.now)
        while_counting = prune_at(own, IN_MARCH)
    one.evaluate()
    afterwards = prune_at(own, IN_MARCH)

    assert receipt == Receipt("v1", 4, 0, 0)
    assert ("pane" in while_counting.failed, of_table(while_counting, "pane")) == (True, [])
    assert of_table(afterwards, "pane") == ["pane_2027_01_01"]
    assert total(one, JANUARY, FEBRUARY) == 12


def test_a_month_does_not_go_while_somebody_adds_it_up(own: Database) -> None:
    one = a_life(own)
    put(one, *(JANUARY + hour * HOUR for hour in range(5)))
    one.evaluate()

    with own.begin() as conn:
        stream = Stream(one.model.id, "v1", 2, one.pane, horizon=horizon.get(conn))
        while_adding = prune_at(own, IN_MARCH)
        found = rollups.total(conn, stream, JANUARY + MINUTE, JANUARY + DAY)["hard"].n
    prune_at(own, IN_MARCH)

    assert while_adding.failed == ("pane",)
    assert found == 40
    assert total(one, JANUARY, JANUARY + DAY) == 50


def test_whoever_counts_waits_for_a_moment_at_the_most(own: Database) -> None:
    one = a_life(own)
    put(one, JANUARY + HOUR)
    one.evaluate()
    one.now = IN_MARCH
    put(one, IN_MARCH)
    waits: list[float] = []

    # Somebody reads for long, so that the pruner has to wait, and others behind him.
    with own.begin() as conn:
        horizon.get(conn)
        pruner = threading.Thread(target=prune_at, args=[own, IN_MARCH])
        pruner.start()
        while pruner.is_alive():
            began = monotonic()
            put(one, IN_MARCH)
            waits.append(monotonic() - began)
        pruner.join()

    assert len(waits) > 1
    assert max(waits) < 2


def test_the_control_who_holds_nothing_misses_what_goes(
    own: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(horizon, "_HOLD", text("SELECT 1"))
    one = a_life(own)
    put(one, *(JANUARY + hour * HOUR for hour in range(5)))
    one.evaluate()

    with own.begin() as conn:
        stream = Stream(one.model.id, "v1", 2, one.pane, horizon=horizon.get(conn))
        prune_at(own, IN_MARCH)
        found = rollups.total(conn, stream, JANUARY + MINUTE, JANUARY + 30 * MINUTE)

    assert (found, names(own, "pane")) == ({}, [])


def test_nobody_drops_a_block_that_is_all_there_is(own: Database) -> None:
    one = a_life(own)
    put(one, JANUARY + HOUR, FEBRUARY + HOUR)
    one.evaluate()
    prune_at(own, IN_MARCH)

    with own.begin() as conn:
        known = horizon.get(conn)
        stream = Stream(one.model.id, "v1", 2, one.pane, horizon=known)
        rollups.drop(conn, stream, [JANUARY + HOUR])

    assert total(one, JANUARY, FEBRUARY) == 10
    # The control: who does not know the horizon takes it for a shorter way to the panes.
    with own.begin() as conn:
        rollups.drop(conn, replace(stream, horizon=horizon.NOTHING_FORGOTTEN), [JANUARY + HOUR])
    assert total(one, JANUARY, FEBRUARY) == 0


def test_panes_wait_for_the_evaluation_that_is_behind_but_not_for_ever(
    own: Database, caplog: pytest.LogCaptureFixture
) -> None:
    one = a_life(own)
    put(one, JANUARY + HOUR)

    behind = prune_at(own, MARCH + 5 * DAY)
    for_long = prune_at(own, MARCH + 12 * DAY)
    in_blocks = total(one, JANUARY, FEBRUARY)
    one.now = MARCH + 12 * DAY
    one.evaluate()

    assert "panes wait for evaluations that are behind" in caplog.text
    assert (of_table(behind, "pane"), of_table(for_long, "pane")) == ([], ["pane_2027_01_01"])
    # What was not taken by then is in the block, and is fed to the detectors all the same.
    assert (in_blocks, total(one, JANUARY, FEBRUARY)) == (10, 10)
    with own.begin() as conn:
        watch = detectors.find(conn, one.model.id, "v1")
        waiting = arrivals.any_before(conn, IN_MARCH + 99 * DAY)
    assert watch is not None
    assert [part.counts.sum() for part in watch.waiting] == [10]
    assert not waiting


def test_an_evaluation_is_not_revised_on_blocks_that_are_wider_than_its_window(
    own: Database, client: TestClient
) -> None:
    one = a_life(own, windows=(Window("10m", WindowKind.SLIDING, length=10 * MINUTE),))
    put(one, JANUARY + 30 * MINUTE)
    one.now = JANUARY + 30 * MINUTE
    one.evaluate()
    with own.begin() as conn:
        before = evaluations.latest(conn, one.model.id, "v1", "10m")
        conn.execute(update(tables.evaluation).values(outdated=True))
        conn.execute(update(tables.model).values(due_at=one.now))
    put(one, JANUARY + 50 * MINUTE)
    waits = prune_at(own, IN_MARCH, evaluations=90)
    prune_at(own, MARCH + 12 * DAY, evaluations=90)

    one.now = MARCH + 12 * DAY
    one.evaluate()

    with own.begin() as conn:
        (after,) = evaluations.page(
            conn, one.model.id, "v1", "10m", end=FEBRUARY, all_revisions=True
        )
    assert of_table(waits, "pane") == []
    assert after == before
    assert after.result.n == 10


# What reaches back.


def test_windows_that_reach_back_are_as_they_were(own: Database, client: TestClient) -> None:
    windows = (
        Window("60d", WindowKind.SLIDING, length=60 * DAY),
        Window("last", WindowKind.LAST, count=75),
        Window("all", WindowKind.VERSION),
        Window("adaptive", WindowKind.ADAPTIVE),
    )
    one = a_life(own, windows=windows)
    put(one, *(JANUARY + hour * HOUR for hour in range(0, 700, 100)))
    put(one, FEBRUARY + DAY, MARCH)
    one.now = MARCH + 5 * DAY
    one.evaluate()

    def estimates() -> dict[str, int]:
        with own.begin() as conn:
            model = models.get(conn, "m")
            worker = one.worker.evaluator
            return {
                window.name: worker.window(conn, model, None, window, one.now).analysis.n
                for window in windows
            }

    before = estimates()
    prune_at(own, one.now)
    after = estimates()
    one.now += MINUTE
    put(one, one.now)
    one.evaluate()

    assert names(own, "pane") == ["pane_2027_02_01", "pane_2027_03_01"]
    assert before == {"60d": 80, "last": 80, "all": 90, "adaptive": 90}
    assert after == before
    with own.begin() as conn:
        found = {
            window.name: evaluations.latest(conn, one.model.id, "v1", window.name)
            for window in windows
        }
    assert {name: one.result.n for name, one in found.items() if one} == {
        "60d": 90,
        "last": 80,
        "all": 100,
        "adaptive": 100,
    }


def test_a_span_of_old_times_says_which_whole_blocks_it_is(
    own: Database, client: TestClient
) -> None:
    one = a_life(own)
    put(one, JANUARY + HOUR, JANUARY + 2 * HOUR)
    one.evaluate()
    prune_at(own, IN_MARCH)

    span = {"from": "2027-01-01T01:30:00Z", "to": "2027-01-01T01:40:00Z"}
    found = client.get("/v1/models/m/estimate", params=span).json()

    assert (found["from"], found["to"]) == ("2027-01-01T01:00:00Z", "2027-01-01T02:00:00Z")
    assert found["n"] == 10


def test_old_panes_are_shown_as_blocks_with_their_length(own: Database, client: TestClient) -> None:
    one = a_life(own)
    put(one, JANUARY + HOUR, JANUARY + HOUR + 5 * MINUTE, FEBRUARY - MINUTE, FEBRUARY)
    one.evaluate()
    query = {"from": "2027-01-01T01:30:00Z", "to": "2027-02-02T00:00:00Z", "limit": "2"}
    before = client.get("/v1/models/m/panes", params=query).json()
    prune_at(own, IN_MARCH)

    first = client.get("/v1/models/m/panes", params=query).json()
    rest = client.get("/v1/models/m/panes", params={**query, "cursor": first["next"]}).json()

    assert [(one["start"], one["length"]) for one in before["items"]] == [
        ("2027-01-31T23:59:00Z", "PT1M"),
        ("2027-02-01T00:00:00Z", "PT1M"),
    ]
    assert [(one["start"], one["length"], one["n"]) for one in first["items"]] == [
        ("2027-01-01T01:00:00Z", "PT1H", 20),
        ("2027-01-31T23:00:00Z", "PT1H", 10),
    ]
    assert [(one["start"], one["length"], one["n"]) for one in rest["items"]] == [
        ("2027-02-01T00:00:00Z", "PT1M", 10)
    ]
    assert rest["next"] is None


def test_softmax_sums_are_shown_of_blocks_too(own: Database, client: TestClient) -> None:
    one = a_life(own)
    rows = np.array([[0.9, 0.1], [0.2, 0.8]])
    one.count([(JANUARY, moments.sums(2, moments.argmax(rows), rows))])
    one.evaluate()
    prune_at(own, IN_MARCH)

    query = {"from": "2027-01-01T00:00:00Z", "to": "2027-01-02T00:00:00Z"}
    (found,) = client.get("/v1/models/m/panes", params=query).json()["items"]

    assert [one["probability"] for one in found["soft"]["labels"]] == pytest.approx([1.1, 0.9])
    assert found["soft"]["n"] == sum(one["count"] for one in found["soft"]["codes"]) == 2


# What has partitions.


def ensure(database: Database, table: str, *days: date) -> None:
    with database.begin() as conn:
        partitions.ensure(conn, [partitions.containing(table, day) for day in days])


def test_batches_go_day_by_day_after_two_days(own: Database) -> None:
    days = [date(2027, 3, day) for day in range(1, 6)]
    ensure(own, "batch", *days)
    with own.begin() as conn:
        key = BatchKey(1, "key")
        batches.claim(conn, [Batch(key, b"", "v1", 1, 0, 0)], datetime(2027, 3, 4, 12, tzinfo=UTC))

    report = prune_at(own, IN_MARCH)

    assert of_table(report, "batch") == ["batch_2027_03_01", "batch_2027_03_02"]
    assert names(own, "batch") == ["batch_2027_03_03", "batch_2027_03_04", "batch_2027_03_05"]
    assert count(own, tables.batch) == 1


@pytest.mark.parametrize(("days", "months"), [(40, []), (31, [1]), (3, [1, 2])])
def test_kept_predictions_go_when_all_of_their_month_is_old(
    own: Database, days: int, months: list[int]
) -> None:
    ensure(own, "prediction", *(date(2027, month, 1) for month in (1, 2, 3)))

    report = prune_at(own, IN_MARCH, predictions=days)

    gone = [f"prediction_2027_{month:02}_01" for month in months]
    assert of_table(report, "prediction") == gone
    assert not {*names(own, "prediction")} & {*gone}


def test_evaluations_go_when_all_of_their_month_is_old(own: Database) -> None:
    ensure(own, "evaluation", *(date(2026, month, 1) for month in (10, 11, 12)))

    report = prune_at(own, IN_MARCH, evaluations=90)

    assert of_table(report, "evaluation") == ["evaluation_2026_10_01", "evaluation_2026_11_01"]


def test_the_evaluation_of_a_long_tumbling_window_stays_while_the_window_lasts(
    own: Database,
) -> None:
    year = Window("year", WindowKind.TUMBLING, length=365 * DAY)
    one = a_life(own, windows=(year,))
    put(one, JANUARY)
    one.evaluate()
    began = pane_start(JANUARY, 365 * DAY)
    one.now = began + 300 * DAY

    report = prune_at(own, one.now)
    put(one, one.now)
    one.evaluate()

    assert of_table(report, "evaluation") == []
    with own.begin() as conn:
        found = evaluations.latest(conn, one.model.id, "v1", "year")
    assert found is not None
    assert (found.slot, found.result.n) == (began, 20)


# Deliveries.


@dataclass(frozen=True, slots=True)
class Post:
    """A webhook, and notices for it."""

    database: Database

    @classmethod
    def of(cls, database: Database) -> "Post":
        with database.begin() as conn:
            webhooks.create(conn, "https://a.example", tuple(Event), Shape.STANDARD, JANUARY)
        return cls(database)

    def tell(self, at: datetime, alarm_id: int | None = None, *, done: bool = True) -> None:
        with self.database.begin() as conn:
            deliveries.queue(conn, {}, Event.FIRING, alarm_id, at)
            claimed = deliveries.claim(conn, at, HOUR) if done else None
            if claimed is not None:
                deliveries.settle(conn, claimed, Delivered(200), at)


def an_alarm(database: Database, one: Life, **values: Any) -> int:
    given = {"state": "firing", "resolved_at": None, "since": JANUARY, **values}
    with database.begin() as conn:
        found: int = conn.execute(
            insert(tables.alarm)
            .values(
                model_id=one.model.id,
                version="v1",
                kind="shift",
                severity="warning",
                reason="",
                evidence={},
                **given,
            )
            .returning(tables.alarm.c.id)
        ).scalar_one()
        conn.execute(
            insert(tables.alarm_change).values(
                model_id=one.model.id,
                alarm_id=found,
                at=JANUARY,
                event="alarm.firing",
                state="firing",
                reason="",
            )
        )
    return found


def test_deliveries_go_month_by_month_and_the_rest_can_be_found(own: Database) -> None:
    post = Post.of(own)
    for at in (JANUARY, FEBRUARY - MINUTE, FEBRUARY, MARCH):
        post.tell(at)

    report = prune_at(own, IN_MARCH)

    assert "delivery_2027_01_01" in of_table(report, "delivery")
    with own.begin() as conn:
        left = deliveries.page(conn, webhooks.page(conn, None, 1)[0].id, None, None, 10)
        again = deliveries.replay(conn, left[0].id, IN_MARCH)
    assert [one.created_at for one in left] == [MARCH, FEBRUARY]
    assert again.state == "pending"


def told(caplog: pytest.LogCaptureFixture, event: str, **fields: Any) -> bool:
    """Whether a line tells of that event, with these fields."""
    lines = (record.msg for record in caplog.records if isinstance(record.msg, dict))
    return any({"event": event, **fields}.items() <= line.items() for line in lines)


def test_a_pending_delivery_is_not_forgotten(
    own: Database, caplog: pytest.LogCaptureFixture
) -> None:
    post = Post.of(own)
    post.tell(JANUARY, done=False)

    skipped = prune_at(own, IN_MARCH)
    with own.begin() as conn:
        claimed = deliveries.claim(conn, IN_MARCH, HOUR)
        assert claimed is not None
        deliveries.settle(conn, claimed, Delivered(200), IN_MARCH)
    settled = prune_at(own, IN_MARCH)

    assert "delivery_2027_01_01" not in of_table(skipped, "delivery")
    left = {"partition": "delivery_2027_01_01", "because": "a delivery is pending"}
    assert told(caplog, "not pruned", **left)
    assert "delivery_2027_01_01" in of_table(settled, "delivery")


def test_who_was_told_of_an_alarm_that_lasts_is_told_of_its_end(own: Database) -> None:
    one = a_life(own)
    post = Post.of(own)
    alarm = an_alarm(own, one)
    post.tell(JANUARY, alarm)

    prune_at(own, IN_MARCH)

    with own.begin() as conn:
        assert deliveries.queue(conn, {}, Event.RESOLVED, alarm, IN_MARCH) == 1


def test_the_last_notice_of_an_alarm_is_enough_to_remember_who_was_told(own: Database) -> None:
    one = a_life(own)
    post = Post.of(own)
    alarm = an_alarm(own, one)
    post.tell(JANUARY, alarm)
    post.tell(MARCH, alarm)

    report = prune_at(own, IN_MARCH)

    assert "delivery_2027_01_01" in of_table(report, "delivery")
    with own.begin() as conn:
        assert deliveries.queue(conn, {}, Event.RESOLVED, alarm, IN_MARCH) == 1


# What has no partitions.


def test_alarms_that_have_been_over_for_long_go_with_their_history(
    own: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune, "PORTION", 2)
    one = a_life(own)
    over = {"state": "resolved", "resolved_at": JANUARY}
    for _ in range(5):
        an_alarm(own, one, **over)
    left = {an_alarm(own, one), an_alarm(own, one, state="resolved", resolved_at=IN_MARCH - DAY)}

    report = prune_at(own, IN_MARCH, alarms=30)

    assert [found.rows for found in report.purged if found.table == "alarm"] == [2, 2, 1]
    with own.begin() as conn:
        found = {row.id for row in conn.execute(select(tables.alarm.c.id))}
        history = {row.alarm_id for row in conn.execute(select(tables.alarm_change.c.alarm_id))}
    assert found == history == left


def test_an_alarm_stays_as_long_as_the_next_one_has_to_wait_for_it(own: Database) -> None:
    one = a_life(own, alarm=replace(PATIENT, cooldown=31 * DAY))
    an_alarm(own, one, state="resolved", resolved_at=IN_MARCH - 20 * DAY)

    prune_at(own, IN_MARCH, alarms=1)

    assert count(own, tables.alarm) == 1
    prune_at(own, IN_MARCH + 20 * DAY, alarms=1)
    assert count(own, tables.alarm) == 0


def test_counts_of_late_predictions_and_silent_writers_go(own: Database) -> None:
    one = a_life(own)
    with own.begin() as conn:
        for at in (JANUARY, IN_MARCH):
            predictions.count_late(conn, {(one.model.id, "v1"): 3}, 0, at)
            writers.note(conn, uuid4(), 1, at)

    report = prune_at(own, IN_MARCH, rollups=30)

    assert {*report.purged} >= {Purged("late", None, 1), Purged("writer", None, 1)}
    assert (count(own, tables.late), count(own, tables.writer)) == (1, 1)


# Sources.


def contributed(one: Life, sequence: int, *starts: datetime, source: str = "edge") -> Any:
    """Ten predictions of each of these panes, said by a source at the life's own time."""
    return one.contribute(sequence, [(start, Sums(np.array([6, 4]))) for start in starts], source)


def said(database: Database) -> list[str]:
    with database.begin() as conn:
        return list(conn.execute(select(tables.source.c.name).order_by("name")).scalars())


def test_what_sources_have_said_is_in_the_blocks_that_are_left(own: Database) -> None:
    one = a_life(own)
    put(one, JANUARY + HOUR)
    for source in ("a", "b"):
        contributed(one, 1, JANUARY + HOUR, JANUARY + 2 * HOUR, FEBRUARY + DAY, source=source)
    one.evaluate()

    report = prune_at(own, IN_MARCH)

    assert of_table(report, "contribution") == ["contribution_2027_01_01"]
    assert names(own, "contribution") == ["contribution_2027_02_01"]
    assert (total(one, JANUARY, FEBRUARY), total(one, FEBRUARY, MARCH)) == (50, 20)


@pytest.mark.parametrize("sequence", [1, 2])
def test_a_word_on_a_closed_month_is_late(own: Database, sequence: int) -> None:
    one = a_life(own)
    contributed(one, 1, JANUARY + HOUR, FEBRUARY + DAY)
    one.evaluate()
    prune_at(own, IN_MARCH)
    one.now = IN_MARCH

    outcome = contributed(one, sequence, JANUARY + HOUR, FEBRUARY + DAY)

    there = Fate.DUPLICATE if sequence == 1 else Fate.REPLACED
    assert outcome.fates == (Fate.LATE, there)
    assert (total(one, JANUARY, FEBRUARY), total(one, FEBRUARY, MARCH)) == (10, 10)


def test_a_source_that_is_silent_for_as_long_as_panes_are_kept_makes_room(own: Database) -> None:
    one = a_life(own)
    contributed(one, 1, JANUARY, source="old")
    contributed(one, 1, JANUARY, FEBRUARY, source="young")
    one.evaluate()

    report = prune_at(own, IN_MARCH)
    one.now = IN_MARCH
    contributed(one, 1, MARCH, source="new")
    one.evaluate()

    assert Purged("source", None, 1) in report.purged
    assert said(own) == ["new", "young"]
    with own.begin() as conn:
        numbers = conn.execute(select(tables.source.c.name, tables.source.c.shard)).all()
    # The number that has become free.
    assert dict(map(tuple, numbers))["new"] == sources.FIRST_SHARD
    assert total(one, JANUARY, IN_MARCH) == 40


def test_a_source_that_speaks_while_it_is_to_be_forgotten_stays(own: Database) -> None:
    one = a_life(own)
    contributed(one, 1, JANUARY)
    key = SourceKey(one.model.id, "edge")
    forgotten: list[int] = []

    def forget() -> None:
        with own.begin() as conn:
            forgotten.append(sources.forget(conn, FEBRUARY, 10))

    thread = threading.Thread(target=forget)
    with own.begin() as conn:
        sources.hold(conn, {key: FEBRUARY}, 10)
        thread.start()
        thread.join(0.3)
    thread.join()

    assert (forgotten, said(own)) == ([0], ["edge"])


# Who prunes, and what is said of it.


def test_one_at_a_time(own: Database) -> None:
    ensure(own, "batch", date(2027, 1, 1))

    with own.begin() as conn:
        assert partitions.may_prune(conn)
        meanwhile = prune_at(own, IN_MARCH)
    afterwards = prune_at(own, IN_MARCH)

    assert meanwhile == Report((), (), busy=True)
    assert of_table(afterwards, "batch") == ["batch_2027_01_01"]


def test_many_at_once_do_it_once(own: Database) -> None:
    one = a_life(own)
    put(one, *(JANUARY + hour * HOUR for hour in range(700)))
    one.evaluate()
    reports: list[Report] = []

    def run() -> None:
        reports.append(prune_at(own, IN_MARCH))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reports.append(prune_at(own, IN_MARCH))

    assert [name for found in reports for name in of_table(found, "pane")] == ["pane_2027_01_01"]
    assert total(one, JANUARY, FEBRUARY) == 7000


def test_what_went_is_logged_and_counted(own: Database, caplog: pytest.LogCaptureFixture) -> None:
    ensure(own, "batch", date(2027, 1, 1), date(2027, 1, 2))
    with own.begin() as conn:
        key = BatchKey(1, "key")
        batches.claim(conn, [Batch(key, b"", "v1", 1, 0, 0)], datetime(2027, 1, 1, 12, tzinfo=UTC))
    with own.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.execute(text("ANALYZE batch_2027_01_01"))

    def counted() -> list[float | None]:
        labels = {"table": "batch"}
        found = metrics.REGISTRY.get_sample_value
        return [
            found("shiftwatch_pruned_partitions_total", labels),
            found("shiftwatch_pruned_rows_total", labels),
        ]

    before = counted()
    with caplog.at_level(logging.INFO, "app.prune"):
        prune_at(own, IN_MARCH)

    assert told(caplog, "pruned", table="batch", partition="batch_2027_01_01", rows=1)
    assert [now - (was or 0) for now, was in zip(counted(), before, strict=True) if now] == [2, 1]
    last = metrics.REGISTRY.get_sample_value("shiftwatch_last_prune_timestamp_seconds")
    assert last == IN_MARCH.timestamp()


def test_what_fails_for_one_table_does_not_keep_the_others(
    own: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("a surprise")

    monkeypatch.setattr(prune, "_panes", fail)
    ensure(own, "batch", date(2027, 1, 1))
    ensure(own, "evaluation", date(2026, 1, 1))
    metrics.LAST_PRUNE.set(0)

    report = prune_at(own, IN_MARCH)

    assert report.failed == ("pane",)
    assert of_table(report, "evaluation") == ["evaluation_2026_01_01"]
    assert told(caplog, "not pruned", table="pane")
    # So that somebody notices.
    assert metrics.REGISTRY.get_sample_value("shiftwatch_last_prune_timestamp_seconds") == 0


def test_a_table_that_is_in_use_is_left_for_the_next_time(own: Database) -> None:
    ensure(own, "batch", date(2027, 1, 1))

    with own.begin() as conn:
        conn.execute(text("SELECT count(*) FROM batch"))
        busy = prune_at(own, IN_MARCH)
    free = prune_at(own, IN_MARCH)

    assert (busy.failed, of_table(busy, "batch")) == (("batch",), [])
    assert of_table(free, "batch") == ["batch_2027_01_01"]


def test_a_model_that_is_deleted_meanwhile_leaves_nothing(
    own: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = a_life(own)
    put(one, JANUARY + HOUR)
    one.evaluate()
    coarsen = rollups.coarsen

    def forget_first(conn: Connection, stream: Stream, *span: datetime) -> None:
        with own.begin() as other:
            # All but the panes, which wait for us.
            other.execute(tables.model.delete())
        coarsen(conn, stream, *span)

    monkeypatch.setattr(rollups, "coarsen", forget_first)

    prune_at(own, IN_MARCH)

    assert count(own, tables.rollup) == 0


def test_a_worker_makes_a_partition_again_that_went_although_it_knew_it(own: Database) -> None:
    one = a_life(own)
    put(one, JANUARY)
    one.evaluate()
    with own.begin() as conn:
        partitions.drop(conn, partitions.containing("evaluation", JANUARY))
    put(one, JANUARY)

    for _ in range(2):
        one.now += MINUTE
        one.evaluate()

    with own.begin() as conn:
        found = evaluations.latest(conn, one.model.id, "v1", "1h")
    assert found is not None
    assert found.result.n == 20


def test_a_recorder_makes_a_month_again_that_went_although_it_knew_it(own: Database) -> None:
    one = a_life(own)
    recorder = Recorder(own, clock=lambda: JANUARY + 5 * DAY)
    early, late = (
        Submission(
            Reduced(one.model, "v1", {PaneKey(one.model.id, "v1", at, "hard"): part}, part.n)
        )
        for at, part in ((JANUARY, Sums(np.array([1, 2]))), (JANUARY, Sums(np.array([3, 4]))))
    )

    async def send() -> list[Any]:
        recorder.start()
        first = await recorder.record(early)
        with own.begin() as conn:
            partitions.drop(conn, partitions.containing("pane", JANUARY))
        second = await recorder.record(late)
        await recorder.stop()
        return [first, second]

    assert asyncio.run(send()) == [Receipt("v1", 3, 0, 0), Receipt("v1", 7, 0, 0)]
    assert total(one, JANUARY, FEBRUARY) == 7


def shiftwatch(url: str, command: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if "SHIFTWATCH" not in name}
    return subprocess.run(
        [sys.executable, "-m", "app", command],
        env={**environ, "SHIFTWATCH_DATABASE_URL": url},
        capture_output=True,
        text=True,
    )


def test_the_command_prints_what_went(own: Database) -> None:
    ensure(own, "batch", date(2020, 1, 1), date(2020, 1, 2))

    first, again = (shiftwatch(own.url, "prune") for _ in range(2))

    assert (first.returncode, again.returncode) == (0, 0)
    assert first.stdout == "batch_2020_01_01\t0 rows\nbatch_2020_01_02\t0 rows\n"
    assert again.stdout == "nothing was too old\n"
    assert '"table": "batch", "partition": "batch_2020_01_01", "rows": 0' in first.stderr


def test_the_command_says_what_could_not_be_pruned(own: Database) -> None:
    ensure(own, "batch", date(2020, 1, 1))

    with own.begin() as conn:
        conn.execute(text("SELECT count(*) FROM batch"))
        found = shiftwatch(own.url, "prune")

    assert found.returncode == 1
    assert "could not be pruned now: batch" in found.stderr


def test_the_command_wants_the_schema_of_its_release(server_url: str) -> None:
    found = shiftwatch(server_url, "prune")

    assert (found.returncode, found.stdout) == (1, "")
    assert "`migrate` first" in found.stderr


# Months.


def test_after_sixty_days_the_tables_grow_no_more(own: Database) -> None:
    periods = {"panes": 7, "rollups": 14, "evaluations": 14, "predictions": 7, "alarms": 14}
    keep = {f"keep_{table}_days": days for table, days in {**periods, "deliveries": 7}.items()}
    fleet = Fleet(own, Settings.model_validate(keep), pane=2 * HOUR, size=2, together=6)
    most: list[dict[str, tuple[int, ...]]] = []

    for _ in range(3):
        largest: dict[str, tuple[int, ...]] = {}
        for _ in range(15):
            fleet.live(2)
            for table, found in fleet.sizes().items():
                largest[table] = tuple(map(max, found, largest.get(table, (0, 0))))
        most.append(largest)

    first, second, third = most
    growing = {
        table: (before, third[table])
        for table, before in second.items()
        # A month is not as long as another, and alarms are a matter of chance.
        if any(now > 1.15 * was + 5 for now, was in zip(third[table], before, strict=True))
    }
    assert growing == {}
    # The control: in the first sixty days they did grow.
    grew = {name for name, (rows, _) in first.items() if second[name][0] > 1.15 * rows}
    assert grew >= {"pane", "rollup", "evaluation", "prediction", "delivery"}
    partitioned = {"batch", "prediction", "pane", "rollup", "evaluation", "delivery"}
    assert {one.table for one in fleet.purged} == partitioned | {"alarm", "late"}


def test_a_clock_that_is_far_ahead_forgets_nothing(own: Database) -> None:
    ensure(own, "batch", date(2020, 1, 1))
    ahead = datetime.now(UTC) + 2 * HOUR

    with pytest.raises(prune.WrongClock, match="ahead of the database's"):
        prune.prune_now(own, Settings(), ahead)

    assert names(own, "batch") == ["batch_2020_01_01"]
    assert prune.prune_now(own, Settings(), datetime.now(UTC)).purged


def test_who_finds_somebody_else_pruning_says_so(own: Database) -> None:
    ensure(own, "batch", date(2020, 1, 1))
    with own.begin() as conn:
        assert partitions.may_prune(conn)

        report = prune_at(own, IN_MARCH)
        said = shiftwatch(own.url, "prune")

    assert report.busy
    assert (said.returncode, said.stdout) == (1, "")
    assert "somebody else is pruning just now" in said.stderr


def test_a_partition_that_is_being_dropped_does_not_trouble_who_looks(own: Database) -> None:
    ensure(own, "batch", *(date(2020, 1, day) for day in range(1, 29)))
    looks: list[int] = []
    gone = threading.Event()

    def look() -> None:
        while not gone.is_set():
            with own.begin() as conn:
                looks.append(len(partitions.existing(conn, "batch")))

    looker = threading.Thread(target=look)
    looker.start()
    prune_at(own, IN_MARCH)
    gone.set()
    looker.join()

    with own.begin() as conn:
        assert partitions.existing(conn, "batch") == []
    # The thread would have died of the first surprise.
    assert looks
    assert looks[-1] <= looks[0]


def test_blocks_are_forgotten_while_somebody_evaluates_all_the_time(own: Database) -> None:
    one = a_life(own)
    put(one, JANUARY, MARCH)
    prune_at(own, IN_MARCH)
    done = threading.Event()
    longest = 0.0

    def read() -> None:
        nonlocal longest
        while not done.is_set():
            began = monotonic()
            with own.begin() as conn:
                horizon.get(conn)
                sleep(0.05)
                conn.execute(text("SELECT count(*) FROM rollup"))
            longest = max(longest, monotonic() - began)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    report = prune_at(own, IN_MARCH + 800 * DAY)
    done.set()
    for reader in readers:
        reader.join()

    assert "rollup" not in report.failed
    assert "rollup_2027_01_01" in of_table(report, "rollup")
    assert longest < 3.0
