"""Batches: counted once, whoever repeats them and when."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from sqlalchemy import text

from app.storage import batches, partitions
from app.storage.batches import Batch, BatchKey
from app.storage.db import Connection, Database

NOON = datetime(2026, 11, 17, 12, 0, tzinfo=UTC)
BEFORE_MIDNIGHT = datetime(2026, 11, 17, 23, 57, tzinfo=UTC)
AFTER_MIDNIGHT = datetime(2026, 11, 18, 0, 3, tzinfo=UTC)
TODAY, TOMORROW = date(2026, 11, 17), date(2026, 11, 18)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def batch(key: str = "k", model_id: int = 1, accepted: int = 5) -> Batch:
    return Batch(BatchKey(model_id, key), b"print", "v1", accepted, 2, 1)


def claim(conn: Connection, some: list[Batch], now: datetime) -> dict[BatchKey, Batch]:
    """With the partitions that the recorder would have made."""
    wanted = [partitions.containing("batch", day) for day in batches.days(now)]
    partitions.ensure(conn, wanted)
    return batches.claim(conn, some, now)


def noted(conn: Connection) -> list[tuple[str, date]]:
    rows = conn.execute(text("SELECT key, received_on FROM batch ORDER BY key, received_on"))
    return [(row.key, row.received_on) for row in rows]


@pytest.mark.parametrize(
    ("now", "days"),
    [
        (NOON, [TODAY]),
        (datetime(2026, 11, 17, 0, 6, tzinfo=UTC), [TODAY]),
        (datetime(2026, 11, 17, 23, 54, tzinfo=UTC), [TODAY]),
        (BEFORE_MIDNIGHT, [TODAY, TOMORROW]),
        (AFTER_MIDNIGHT, [TODAY, TOMORROW]),
        (datetime(2026, 11, 18, 0, 0, tzinfo=UTC), [TODAY, TOMORROW]),
    ],
)
def test_around_midnight_a_batch_belongs_to_both_days(now: datetime, days: list[date]) -> None:
    assert batches.days(now) == days


def test_a_new_batch_was_not_counted_before(conn: Connection) -> None:
    assert claim(conn, [batch()], NOON) == {}


def test_no_batches_are_no_work(conn: Connection) -> None:
    assert batches.claim(conn, [], NOON) == {}


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (NOON, NOON),
        (NOON, NOON + 11 * HOUR),
        (NOON, BEFORE_MIDNIGHT),
        (NOON, AFTER_MIDNIGHT),
        (NOON, NOON + DAY),
        (NOON, datetime(2026, 11, 18, 23, 54, tzinfo=UTC)),
        (BEFORE_MIDNIGHT, BEFORE_MIDNIGHT),
        (BEFORE_MIDNIGHT, AFTER_MIDNIGHT),
        (BEFORE_MIDNIGHT, BEFORE_MIDNIGHT + HOUR),
        (BEFORE_MIDNIGHT, BEFORE_MIDNIGHT + DAY),
        (AFTER_MIDNIGHT, AFTER_MIDNIGHT + 12 * HOUR),
        (AFTER_MIDNIGHT, AFTER_MIDNIGHT + DAY),
        # Clocks of replicas differ: the later request may be the one that looks earlier.
        (AFTER_MIDNIGHT, BEFORE_MIDNIGHT),
    ],
)
def test_a_repeat_finds_the_batch_as_it_was_counted(
    conn: Connection, first: datetime, again: datetime
) -> None:
    claim(conn, [batch(accepted=5)], first)

    found = claim(conn, [batch(accepted=7)], again)

    assert found == {BatchKey(1, "k"): batch(accepted=5)}


def test_a_third_request_is_a_repeat_too(conn: Connection) -> None:
    claim(conn, [batch()], NOON)
    claim(conn, [batch()], BEFORE_MIDNIGHT)

    assert claim(conn, [batch()], NOON + DAY) == {BatchKey(1, "k"): batch()}


def test_after_two_days_a_key_is_forgotten(conn: Connection) -> None:
    claim(conn, [batch()], NOON)

    assert claim(conn, [batch()], NOON + 2 * DAY) == {}


def test_around_midnight_both_days_are_claimed(conn: Connection) -> None:
    claim(conn, [batch()], BEFORE_MIDNIGHT)

    assert noted(conn) == [("k", TODAY), ("k", TOMORROW)]


def test_a_claim_on_one_day_only_is_given_back(conn: Connection) -> None:
    claim(conn, [batch()], NOON)

    claim(conn, [batch()], BEFORE_MIDNIGHT)

    assert noted(conn) == [("k", TODAY)]


def test_giving_back_leaves_the_neighbours_alone(conn: Connection) -> None:
    claim(conn, [batch("old")], NOON)

    found = claim(conn, [batch("old"), batch("new")], BEFORE_MIDNIGHT)

    assert list(found) == [BatchKey(1, "old")]
    assert noted(conn) == [("new", TODAY), ("new", TOMORROW), ("old", TODAY)]


def test_new_and_repeated_batches_are_told_apart(conn: Connection) -> None:
    claim(conn, [batch("a"), batch("b")], NOON)

    found = claim(conn, [batch("c"), batch("b"), batch("a"), batch("d")], NOON + HOUR)

    assert sorted(found) == [BatchKey(1, "a"), BatchKey(1, "b")]


def test_a_key_belongs_to_its_model(conn: Connection) -> None:
    claim(conn, [batch(model_id=1)], NOON)

    assert claim(conn, [batch(model_id=2)], NOON) == {}


def test_the_fingerprint_is_that_of_the_first(conn: Connection) -> None:
    claim(conn, [batch()], NOON)

    (found,) = claim(conn, [replace(batch(), fingerprint=b"other")], NOON).values()

    assert found.fingerprint == b"print"


@pytest.mark.parametrize("key", ["x" * 200, "ключ", "a'b\"c\\", "{a,b}", "NULL", " "])
def test_a_key_may_look_like_anything(conn: Connection, key: str) -> None:
    claim(conn, [batch(key)], NOON)

    assert claim(conn, [batch(key)], NOON) == {BatchKey(1, key): batch(key)}


@pytest.fixture
def own(clone: Callable[[], str]) -> Iterator[Database]:
    """A database in which transactions truly commit."""
    database = Database(clone())
    with database.begin() as conn:
        wanted = [partitions.containing("batch", day) for day in (TODAY, TOMORROW)]
        partitions.ensure(conn, wanted)
    yield database
    database.close()


@pytest.mark.parametrize("commits", [True, False])
def test_a_repeat_waits_for_the_first_to_commit_or_not(own: Database, commits: bool) -> None:
    found: list[dict[BatchKey, Batch]] = []

    def repeat() -> None:
        with own.begin() as conn:
            found.append(batches.claim(conn, [batch()], NOON))

    second = threading.Thread(target=repeat)
    with own.engine.connect() as first:
        batches.claim(first, [batch()], NOON)
        second.start()
        second.join(0.3)
        waited = second.is_alive()
        first.commit() if commits else first.rollback()
    second.join()

    assert waited
    assert found == [{BatchKey(1, "k"): batch()} if commits else {}]


def wait_until_locked(database: Database, waiting: int) -> None:
    """Until so many transactions wait for others."""
    query = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    deadline = time.monotonic() + 10
    found = 0
    while found != waiting:
        assert time.monotonic() < deadline, f"{found} are waiting, not {waiting}"
        time.sleep(0.01)
        with database.begin() as conn:
            found = conn.execute(query).scalar_one()


@pytest.mark.parametrize("now", [NOON, BEFORE_MIDNIGHT])
def test_two_who_claim_the_same_keys_in_opposite_order_do_not_deadlock(
    own: Database, now: datetime
) -> None:
    some = [batch(key) for key in "abcde"]
    won: list[str] = []
    errors: list[Exception] = []

    def take(mine: list[Batch]) -> None:
        try:
            with own.begin() as conn:
                before = batches.claim(conn, mine, now)
            won.extend(one.id.key for one in mine if one.id not in before)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=take, args=[mine]) for mine in (some, some[::-1])]
    with own.engine.connect() as blocker:
        # Whoever claims in its own order has one end of the keys by now and waits for the middle.
        batches.claim(blocker, [batch("c")], now)
        for waiting, thread in enumerate(threads, start=1):
            thread.start()
            wait_until_locked(own, waiting)
        blocker.rollback()
    for thread in threads:
        thread.join()

    assert errors == []
    assert sorted(won) == list("abcde")
