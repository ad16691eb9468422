"""Partitions of the tables that time fills: made when they are first needed, dropped when old.

There is no default partition: rows in it would stand in the way of the partition they belong to.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from sqlalchemy import Connection, text

from app.storage.db import patiently

# Held while a partition is made, so that two processes that need the same one do not collide.
PARTITION_LOCK = 74439
# Held by the one who forgets what is too old.
PRUNE_LOCK = 74440


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """The part of `table` that holds `first` to before `end`."""

    table: str
    first: date
    end: date

    @property
    def name(self) -> str:
        return f"{self.table}_{self.first:%Y_%m_%d}"

    @property
    def first_moment(self) -> datetime:
        return datetime.combine(self.first, time(), UTC)

    @property
    def end_moment(self) -> datetime:
        return datetime.combine(self.end, time(), UTC)

    def is_before(self, when: datetime) -> bool:
        return self.end_moment <= when

    def lies_in(self, other: "Partition") -> bool:
        return self.table == other.table and other.first <= self.first < other.end


def _month(day: date) -> tuple[date, date]:
    first = day.replace(day=1)
    return first, (first + timedelta(days=31)).replace(day=1)


def _day(day: date) -> tuple[date, date]:
    return day, day + timedelta(days=1)


SPAN: dict[str, Callable[[date], tuple[date, date]]] = {
    "pane": _month,
    "contribution": _month,
    "prediction": _month,
    "rollup": _month,
    "evaluation": _month,
    "delivery": _month,
    "batch": _day,
}


def containing(table: str, when: date | datetime) -> Partition:
    """The partition of `table` that a row of that time lives in."""
    day = when.astimezone(UTC).date() if isinstance(when, datetime) else when
    return Partition(table, *SPAN[table](day))


def covering(table: str, times: Sequence[datetime]) -> set[Partition]:
    """The partitions that rows of these times live in, and those between them."""
    part, last = containing(table, min(times)), containing(table, max(times))
    found = {part, last}
    while part.end < last.first:
        part = containing(table, part.end)
        found.add(part)
    return found


def ensure(conn: Connection, wanted: Iterable[Partition]) -> None:
    """Make the partitions that are missing."""
    if not _missing(conn, wanted):
        return
    conn.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": PARTITION_LOCK})
    # Asked again: somebody may have made them while we waited.
    for partition in _missing(conn, wanted):
        _create(conn, partition)


_EXISTING = text(
    "SELECT pg_get_expr(relpartbound, pg_class.oid) FROM pg_inherits"
    " JOIN pg_class ON pg_class.oid = inhrelid WHERE inhparent = CAST(:name AS regclass)"
)
_BOUNDS = re.compile(r"FROM \('(.+)'\) TO \('(.+)'\)")


def existing(conn: Connection, table: str) -> list[Partition]:
    """The partitions that a table has, oldest first."""
    found = conn.execute(_EXISTING, {"name": table}).scalars()
    # One that is being dropped at this moment has no bounds any more.
    bounds = (_BOUNDS.search(one) for one in found if one is not None)
    return sorted(Partition(table, *map(_day_of, one.groups())) for one in bounds if one)


def may_prune(conn: Connection) -> bool:
    """Whether nobody else forgets anything until the transaction ends."""
    found = conn.execute(text("SELECT pg_try_advisory_xact_lock(:lock)"), {"lock": PRUNE_LOCK})
    return bool(found.scalar_one())


def take(conn: Connection, partition: Partition) -> None:
    """Keep everybody out of a partition's table until the transaction ends."""
    patiently(conn, text(f"LOCK TABLE ONLY {partition.table} IN ACCESS EXCLUSIVE MODE"))


def freeze(conn: Connection, partition: Partition) -> None:
    """Keep everybody from changing a partition until the transaction ends; it can be read."""
    conn.execute(text(f"LOCK TABLE {partition.name} IN SHARE ROW EXCLUSIVE MODE"))


# Counting them would read all of it. One that was never analysed has -1 of the first.
_ABOUT_ROWS = text(
    "SELECT greatest(reltuples, pg_stat_get_live_tuples(oid), 0) FROM pg_class"
    " WHERE oid = CAST(:name AS regclass)"
)


def drop(conn: Connection, partition: Partition) -> int:
    """Forget a partition and all that is in it: about so many rows.

    Locks everybody out of its table, until the transaction ends.
    """
    rows = conn.execute(_ABOUT_ROWS, {"name": partition.name}).scalar_one()
    patiently(
        conn,
        text(f"ALTER TABLE {partition.table} DETACH PARTITION {partition.name}"),
        text(f"DROP TABLE {partition.name}"),
    )
    return int(rows)


def _missing(conn: Connection, wanted: Iterable[Partition]) -> list[Partition]:
    tables = {one.table for one in wanted}
    there = [one for table in tables for one in existing(conn, table)]
    return [one for one in sorted(set(wanted)) if not any(one.lies_in(other) for other in there)]


def _create(conn: Connection, partition: Partition) -> None:
    # Made beside the table and then attached: CREATE ... PARTITION OF would lock out every
    # reader and writer of the table, ATTACH does not. Numbers are given out by the whole table.
    conn.execute(
        text(
            f"CREATE TABLE {partition.name}"
            f" (LIKE {partition.table} INCLUDING ALL EXCLUDING IDENTITY)"
            + (" WITH (fillfactor = 50)" if partition.table == "pane" else "")
        )
    )
    conn.execute(
        text(
            f"ALTER TABLE {partition.table} ATTACH PARTITION {partition.name}"
            f" FOR VALUES FROM ('{_bound(partition, partition.first)}')"
            f" TO ('{_bound(partition, partition.end)}')"
        )
    )


def _bound(partition: Partition, day: date) -> str:
    return str(day) if partition.table == "batch" else f"{day} 00:00:00+00"


def _day_of(bound: str) -> date:
    at = datetime.fromisoformat(bound)
    return at.date() if at.tzinfo is None else at.astimezone(UTC).date()
