"""Partitions: made when they are needed, by whoever comes first."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from app.domain.notice import Event, Shape
from app.storage import deliveries, partitions, webhooks
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


def test_partitions_can_be_listed_oldest_first_and_dropped(conn: Connection) -> None:
    wanted = [containing("batch", date(1999, 5, day)) for day in (7, 5, 6)]
    partitions.ensure(conn, wanted)

    before = [one for one in partitions.existing(conn, "batch") if one.first.year == 1999]
    partitions.drop(conn, wanted[0])
    after = [one for one in partitions.existing(conn, "batch") if one.first.year == 1999]

    assert before == sorted(wanted)
    assert after == sorted(wanted[1:])


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/Los_Angeles"])
@pytest.mark.parametrize("table", partitions.SPAN)
def test_bounds_are_read_as_they_were_made_whatever_the_session_thinks(
    conn: Connection, table: str, zone: str
) -> None:
    conn.execute(text(f"SET LOCAL timezone = '{zone}'"))
    wanted = containing(table, date(1999, 5, 5))

    partitions.ensure(conn, [wanted])

    assert wanted in partitions.existing(conn, table)


def test_a_partition_within_one_that_is_longer_is_not_missing(conn: Connection) -> None:
    conn.execute(
        text(
            "CREATE TABLE prediction_1990_01_01 PARTITION OF prediction"
            " FOR VALUES FROM ('1990-01-01 00:00:00+00') TO ('2000-01-01 00:00:00+00')"
        )
    )

    partitions.ensure(conn, [containing("prediction", moment("1999-05-05T00:00:00"))])

    assert place(conn, moment("1999-05-05T00:00:00")) == "prediction_1990_01_01"


def test_numbers_come_from_the_table_and_not_from_its_partitions(conn: Connection) -> None:
    owner = webhooks.create(
        conn, "https://a.example", (Event.TEST,), Shape.STANDARD, moment("1999-01-05T00:00:00")
    )
    for month in (3, 1, 2):
        deliveries.queue(conn, {}, Event.TEST, None, moment(f"1999-{month:02}-05T00:00:00"))

    found = deliveries.page(conn, owner.id, None, None, 10)

    ids = [one.id for one in found]
    assert ids == list(range(ids[-1] + 2, ids[-1] - 1, -1))
    assert [one.created_at.month for one in found] == [2, 1, 3]


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
