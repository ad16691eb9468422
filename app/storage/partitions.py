"""Partitions of the tables that time fills, made when they are first needed.

There is no default partition: rows in it would stand in the way of the partition they belong to.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import Connection, text

# Held while a partition is made, so that two processes that need the same one do not collide.
PARTITION_LOCK = 74439


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """The part of `table` that holds `first` to before `end`."""

    table: str
    first: date
    end: date

    @property
    def name(self) -> str:
        return f"{self.table}_{self.first:%Y_%m_%d}"


def _month(day: date) -> tuple[date, date]:
    first = day.replace(day=1)
    return first, (first + timedelta(days=31)).replace(day=1)


def _day(day: date) -> tuple[date, date]:
    return day, day + timedelta(days=1)


SPAN: dict[str, Callable[[date], tuple[date, date]]] = {
    "pane": _month,
    "prediction": _month,
    "rollup": _month,
    "evaluation": _month,
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
    conn.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": PARTITION_LOCK})
    for partition in sorted(set(wanted)):
        if not _exists(conn, partition):
            _create(conn, partition)


def _exists(conn: Connection, partition: Partition) -> bool:
    found = conn.execute(text("SELECT to_regclass(:name)"), {"name": partition.name})
    return found.scalar_one() is not None


def _create(conn: Connection, partition: Partition) -> None:
    # Made beside the table and then attached: CREATE ... PARTITION OF would lock out every
    # reader and writer of the table, ATTACH does not.
    conn.execute(
        text(
            f"CREATE TABLE {partition.name} (LIKE {partition.table} INCLUDING ALL)"
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
