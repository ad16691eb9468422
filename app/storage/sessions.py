"""Who has signed in to the page: with which key, and until when. Only a digest is stored."""

import secrets
from datetime import datetime

from sqlalchemy import Connection, delete, insert, select

from app.storage.keys import ApiKey, digest
from app.storage.keys import of_row as key_of_row
from app.storage.tables import api_key, session


def create(conn: Connection, key: ApiKey, now: datetime, until: datetime) -> str:
    """A new session of a key; returns what its cookie is to hold."""
    conn.execute(delete(session).where(session.c.expires_at <= now))
    token = secrets.token_urlsafe(32)
    conn.execute(
        insert(session).values(
            digest=digest(token), key_id=key.id, created_at=now, expires_at=until
        )
    )
    return token


def find(conn: Connection, token: str, now: datetime) -> ApiKey | None:
    """The key that a session stands for, unless it is over or the key was revoked."""
    row = conn.execute(
        select(api_key)
        .join(session, session.c.key_id == api_key.c.id)
        .where(
            session.c.digest == digest(token),
            session.c.expires_at > now,
            api_key.c.revoked_at.is_(None),
        )
    ).one_or_none()
    return None if row is None else key_of_row(row)


def end(conn: Connection, token: str) -> None:
    conn.execute(delete(session).where(session.c.digest == digest(token)))
