"""Partitions: made when they are needed, by whoever comes first."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from app.storage import partitions
from app.storage.db import Connection, Database
from app.storage.partitions import Partition, containing

EAST = timezone(timedelta(hours=2))


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def existing(conn: Connection) -> set[str]:
    leaves = " UNION ".join(
        f"SELECT relid::text FROM pg_partition_tree('{table}') WHERE isleaf"
        for table in partitions.SPAN
    )
    found = conn.execute(text(leaves))
    return set(found.scalars())


def place(conn: Connection, at: datetime) -> str:
    """In which partition a prediction of that time ends up."""
    inserted = conn.execute(
        text(
            "INSERT INTO prediction (model_id, id, at, version, predicted)"
            " VALUES (1, :id, :at, 'v', 0) RETURNING tableoid::regclass::text"
        ),
        {"id": at.isoformat(), "at": at},
    )
    name: str = inserted.scalar_one()
    return name


@pytest.mark.parametrize(
    ("table", "when", "first", "end"),
    [
        ("pane", moment("2026-11-17T10:00:00"), date(2026, 11, 1), date(2026, 12, 1)),
        ("pane", moment("2026-12-31T23:59:59"), date(2026, 12, 1), date(2027, 1, 1)),
        ("pane", moment("2027-01-01T00:00:00"), date(2027, 1, 1), date(2027, 2, 1)),
        ("pane", moment("2027-01-31T00:00:00"), date(2027, 1, 1), date(2027, 2, 1)),
        ("pane", moment("2027-02-28T12:00:00"), date(2027, 2, 1), date(2027, 3, 1)),
        ("pane", moment("2028-02-29T12:00:00"), date(2028, 2, 1), date(2028, 3, 1)),
        ("prediction", moment("2026-11-30T23:59:59"), date(2026, 11, 1), date(2026, 12, 1)),
        ("pane", datetime(2027, 1, 1, 1, 0, tzinfo=EAST), date(2026, 12, 1), date(2027, 1, 1)),
        ("batch", date(2026, 12, 31), date(2026, 12, 31), date(2027, 1, 1)),
        ("batch", date(2028, 2, 28), date(2028, 2, 28), date(2028, 2, 29)),
    ],
)
def test_a_time_lies_in_its_month_or_day(
    table: str, when: date | datetime, first: date, end: date
) -> None:
    assert containing(table, when) == Partition(table, first, end)


def test_without_a_partition_nothing_can_be_stored(conn: Connection) -> None:
    with pytest.raises(IntegrityError, match="no partition"):
        place(conn, moment("1999-05-05T00:00:00"))


def test_a_partition_is_made_on_demand(conn: Connection) -> None:
    wanted = containing("prediction", moment("1999-05-05T00:00:00"))

    partitions.ensure(conn, [wanted])

    assert wanted.name in existing(conn)
    assert place(conn, moment("1999-05-05T00:00:00")) == "prediction_1999_05_01"


def test_making_it_again_changes_nothing(conn: Connection) -> None:
    wanted = [containing("batch", date(1999, 5, 5))]
    partitions.ensure(conn, wanted)
    before = existing(conn)

    partitions.ensure(conn, wanted * 2)

    assert existing(conn) == before


def test_a_month_ends_where_the_next_begins(conn: Connection) -> None:
    times = [moment(f"1999-{at}") for at in ("01-31T23:59:59.999999", "02-01T00:00:00")]
    partitions.ensure(conn, [containing("prediction", at) for at in times])

    places = [place(conn, at) for at in times]

    assert places == ["prediction_1999_01_01", "prediction_1999_02_01"]


def test_a_month_is_one_of_utc_whatever_the_session_thinks(conn: Connection) -> None:
    conn.execute(text("SET LOCAL timezone = 'Asia/Tokyo'"))
    times = [moment(f"1999-{at}") for at in ("01-31T23:59:59", "02-01T00:00:00")]
    partitions.ensure(conn, [containing("prediction", at) for at in times])

    places = [place(conn, at) for at in times]

    assert places == ["prediction_1999_01_01", "prediction_1999_02_01"]


def test_partitions_have_the_constraints_of_their_table(conn: Connection) -> None:
    partitions.ensure(conn, [containing("pane", moment("1999-05-05T00:00:00"))])

    with pytest.raises(IntegrityError, match="pane_counts_check"):
        conn.execute(
            text(
                "INSERT INTO pane (model_id, version, start, kind, shard, counts, updated_at)"
                " VALUES (1, 'v', '1999-05-05 00:00:00+00', 'hard', 0, '{1}', now())"
            )
        )


@pytest.fixture
def own(clone: Callable[[], str]) -> Iterator[Database]:
    """A database in which transactions truly commit."""
    database = Database(clone(), pool_size=6)
    yield database
    database.close()


def test_many_may_need_the_same_partitions_at_once(own: Database) -> None:
    wanted = [
        containing(table, moment(f"1999-{month:02}-05T00:00:00"))
        for table in partitions.SPAN
        for month in (1, 2, 3)
    ]
    together = threading.Barrier(6)
    errors: list[Exception] = []

    def make(backwards: bool) -> None:
        together.wait()
        try:
            with own.begin() as conn:
                partitions.ensure(conn, wanted[::-1] if backwards else wanted)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=make, args=[i % 2 == 1]) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    with own.begin() as conn:
        found = existing(conn)
    assert errors == []
    assert {name for name in found if "_1999_" in name} == {partition.name for partition in wanted}


def test_nobody_who_reads_or_writes_is_in_the_way(own: Database) -> None:
    january, february = (moment(f"1999-{month}-05T00:00:00") for month in ("01", "02"))
    with own.begin() as conn:
        partitions.ensure(conn, [containing("prediction", january)])

    with own.begin() as busy:
        place(busy, january)
        busy.execute(text("SELECT count(*) FROM prediction"))
        with own.begin() as conn:
            conn.execute(text("SET LOCAL lock_timeout = '1s'"))
            partitions.ensure(conn, [containing("prediction", february)])
            found = place(conn, february)

    assert found == "prediction_1999_02_01"
