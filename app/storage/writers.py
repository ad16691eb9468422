"""Writers: each notes the number of its transaction in that transaction.

When a commit gets no answer, the note tells whether it took place, because the two share their
fate. A transaction id would not do: after a crash PostgreSQL gives one that was never written out
to somebody else.
"""

from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, text

from app.storage.db import run

_NOTE = (
    "INSERT INTO writer (id, number, noted_at) VALUES (%(id)s, %(number)s, %(now)s)"
    " ON CONFLICT (id) DO UPDATE SET number = excluded.number, noted_at = excluded.noted_at"
)


def note(conn: Connection, writer: UUID, number: int, now: datetime) -> None:
    """Say in a transaction which one of the writer's it is."""
    run(conn, _NOTE, {"id": writer, "number": number, "now": now})


# Locking the row waits for a transaction that is still under way: its session may have outlived
# the connection that we lost.
_LAST = text("SELECT number FROM writer WHERE id = :id FOR UPDATE")


def last(conn: Connection, writer: UUID) -> int | None:
    """The number of the writer's last transaction that took place."""
    found: int | None = conn.execute(_LAST, {"id": writer}).scalar_one_or_none()
    return found


_FORGET = text(
    "DELETE FROM writer WHERE id IN (SELECT id FROM writer WHERE noted_at < :before LIMIT :limit)"
)


def forget(conn: Connection, before: datetime, limit: int) -> int:
    """Forget up to `limit` writers that have not written since then."""
    return conn.execute(_FORGET, {"before": before, "limit": limit}).rowcount
