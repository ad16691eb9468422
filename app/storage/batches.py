"""Batches: which ones have been counted, so that a repeat is harmless.

A key is unique per model and day of arrival, because the table is forgotten day by day. A repeat
on the next day is found by looking back one day. Around midnight two requests with one key could
fall on different days at the same instant, so then both days are claimed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection, text

# Clocks of replicas, and a transaction's begin and end, differ by less than this.
MIDNIGHT_MARGIN = timedelta(minutes=5)

DAY = timedelta(days=1)


class BatchKey(NamedTuple):
    model_id: int
    key: str


@dataclass(frozen=True, slots=True)
class Batch:
    """What was answered when the batch was counted."""

    id: BatchKey
    fingerprint: bytes
    version: str
    accepted: int
    rejected: int
    late: int


def days(now: datetime) -> list[date]:
    """The days of arrival that a batch is noted under now: one, or two around midnight."""
    return sorted({(now - MIDNIGHT_MARGIN).date(), (now + MIDNIGHT_MARGIN).date()})


def claim(conn: Connection, batches: Sequence[Batch], now: datetime) -> dict[BatchKey, Batch]:
    """Note these batches as counted; returns those that were counted before, as they were then.

    Waits for a transaction that is claiming the same key, and then finds it claimed.
    """
    if not batches:
        return {}
    claimed_days = days(now)
    earlier = _find(conn, [batch.id for batch in batches], [claimed_days[0] - DAY])
    new = [batch for batch in batches if batch.id not in earlier]
    if not new:
        return earlier
    inserted = _insert(conn, new, claimed_days)
    lost = [
        batch.id for batch in new if any((batch.id, day) not in inserted for day in claimed_days)
    ]
    if not lost:
        return earlier
    if len(claimed_days) > 1:
        _give_back(conn, [(key, day) for key, day in inserted if key in lost])
    return earlier | _find(conn, lost, claimed_days)


# Arrays make it one statement for any number of rows, prepared once.
_CLAIM = text(
    "INSERT INTO batch"
    " (model_id, key, received_on, fingerprint, version, accepted, rejected, late)"
    " SELECT * FROM unnest(CAST(:model_id AS int[]), CAST(:key AS text[]),"
    " CAST(:received_on AS date[]), CAST(:fingerprint AS bytea[]), CAST(:version AS text[]),"
    " CAST(:accepted AS int[]), CAST(:rejected AS int[]), CAST(:late AS int[]))"
    " ON CONFLICT DO NOTHING RETURNING model_id, key, received_on"
)


def _insert(
    conn: Connection, batches: Sequence[Batch], claimed_days: Sequence[date]
) -> set[tuple[BatchKey, date]]:
    # Every transaction inserts in this order, so those that share keys wait in line instead of
    # for each other.
    rows = [
        (batch, day) for day in claimed_days for batch in sorted(batches, key=lambda one: one.id)
    ]
    inserted = conn.execute(
        _CLAIM,
        {
            "model_id": [batch.id.model_id for batch, _ in rows],
            "key": [batch.id.key for batch, _ in rows],
            "received_on": [day for _, day in rows],
            "fingerprint": [batch.fingerprint for batch, _ in rows],
            "version": [batch.version for batch, _ in rows],
            "accepted": [batch.accepted for batch, _ in rows],
            "rejected": [batch.rejected for batch, _ in rows],
            "late": [batch.late for batch, _ in rows],
        },
    )
    return {(BatchKey(row.model_id, row.key), row.received_on) for row in inserted}


_FIND = text(
    "SELECT model_id, key, fingerprint, version, accepted, rejected, late FROM batch"
    " WHERE received_on = ANY(:days) AND (model_id, key) IN"
    " (SELECT * FROM unnest(CAST(:model_id AS int[]), CAST(:key AS text[])))"
)


def _find(
    conn: Connection, keys: Collection[BatchKey], some_days: Sequence[date]
) -> dict[BatchKey, Batch]:
    rows = conn.execute(
        _FIND,
        {
            "days": list(some_days),
            "model_id": [key.model_id for key in keys],
            "key": [key.key for key in keys],
        },
    )
    return {
        BatchKey(model_id, key): Batch(BatchKey(model_id, key), bytes(fingerprint), *rest)
        for model_id, key, fingerprint, *rest in rows
    }


_GIVE_BACK = text(
    "DELETE FROM batch WHERE (model_id, key, received_on) IN"
    " (SELECT * FROM unnest(CAST(:model_id AS int[]), CAST(:key AS text[]),"
    " CAST(:received_on AS date[])))"
)


def _give_back(conn: Connection, rows: Sequence[tuple[BatchKey, date]]) -> None:
    """Undo a claim that succeeded on one day only: the batch was counted on the other."""
    conn.execute(
        _GIVE_BACK,
        {
            "model_id": [key.model_id for key, _ in rows],
            "key": [key.key for key, _ in rows],
            "received_on": [day for _, day in rows],
        },
    )
