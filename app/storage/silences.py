"""Silences: which alarms nobody is to be told of, until when, and who said so."""

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from app.domain.alarm import Silence
from app.errors import NotFound
from app.storage.tables import silence


def create(conn: Connection, new: Silence) -> Silence:
    row = conn.execute(
        insert(silence)
        .values(
            matchers=dict(new.matchers),
            until=new.until,
            by=new.by,
            reason=new.reason,
            created_at=new.created_at,
        )
        .returning(silence)
    ).one()
    return _silence(row)


def current(conn: Connection, now: datetime) -> list[Silence]:
    """Those in force."""
    rows = conn.execute(select(silence).where(silence.c.until > now, silence.c.ended_at.is_(None)))
    return [_silence(row) for row in rows]


def page(conn: Connection, before: int | None, limit: int) -> list[Silence]:
    """Up to `limit` silences, newest first, those that are over included."""
    query = select(silence).order_by(silence.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(silence.c.id < before)
    return [_silence(row) for row in conn.execute(query)]


def end(conn: Connection, silence_id: int, by: str, now: datetime) -> Silence:
    """End a silence before its time; ending it again changes nothing."""
    conn.execute(
        update(silence)
        .where(silence.c.id == silence_id, silence.c.ended_at.is_(None))
        .values(ended_at=now, ended_by=by)
    )
    row = conn.execute(select(silence).where(silence.c.id == silence_id)).one_or_none()
    if row is None:
        raise NotFound(f"there is no silence {silence_id}")
    return _silence(row)


def _silence(row: Row[Any]) -> Silence:
    return Silence(
        matchers=row.matchers,
        until=row.until,
        by=row.by,
        reason=row.reason,
        created_at=row.created_at,
        ended_at=row.ended_at,
        ended_by=row.ended_by,
        id=row.id,
    )
