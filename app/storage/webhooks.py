"""Webhooks: who is told, where, of what, and with which secret it is signed."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from app.domain import notice
from app.domain.notice import Event, Shape
from app.errors import NotFound
from app.storage.tables import webhook

# How long receivers have to learn a new secret.
ROTATION = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Webhook:
    """Whoever sees it printed learns no secret; the address of a chat is one, too."""

    id: int
    url: str = field(repr=False)
    events: frozenset[Event]
    shape: Shape
    routing_key: str | None = field(repr=False)
    secret: str = field(repr=False)
    old_secret: str | None = field(repr=False)
    old_secret_until: datetime | None
    created_at: datetime
    disabled_at: datetime | None
    disabled_because: str | None

    def secrets(self, now: datetime) -> tuple[str, ...]:
        """With which to sign: the new one and, for a while after a rotation, the old one."""
        if self.old_secret is None or self.old_secret_until is None or self.old_secret_until <= now:
            return (self.secret,)
        return (self.secret, self.old_secret)


def create(
    conn: Connection,
    url: str,
    events: Iterable[Event],
    shape: Shape,
    now: datetime,
    routing_key: str | None = None,
) -> Webhook:
    row = conn.execute(
        insert(webhook)
        .values(
            url=url,
            events=sorted(set(events)),
            shape=shape,
            routing_key=routing_key,
            secret=notice.new_secret(),
            created_at=now,
        )
        .returning(webhook)
    ).one()
    return from_row(row)


def get(conn: Connection, webhook_id: int) -> Webhook:
    row = conn.execute(select(webhook).where(webhook.c.id == webhook_id)).one_or_none()
    if row is None:
        raise _missing(webhook_id)
    return from_row(row)


def page(conn: Connection, after: int | None, limit: int) -> list[Webhook]:
    """Up to `limit` webhooks in the order they were made, the first after the id `after`."""
    query = select(webhook).order_by(webhook.c.id).limit(limit)
    if after is not None:
        query = query.where(webhook.c.id > after)
    return [from_row(row) for row in conn.execute(query)]


def rotate(conn: Connection, webhook_id: int, now: datetime) -> Webhook:
    """A new secret. The one before still signs for a while, the one before that no more."""
    return _change(
        conn,
        webhook_id,
        secret=notice.new_secret(),
        old_secret=webhook.c.secret,
        old_secret_until=now + ROTATION,
    )


def disable(conn: Connection, webhook_id: int, because: str, now: datetime) -> Webhook:
    """Send it nothing more. Disabling it again changes nothing, not even the reason."""
    conn.execute(
        update(webhook)
        .where(webhook.c.id == webhook_id, webhook.c.disabled_at.is_(None))
        .values(disabled_at=now, disabled_because=because)
    )
    return get(conn, webhook_id)


def enable(conn: Connection, webhook_id: int) -> Webhook:
    """What was pending when it was disabled goes out now; what came in between was not queued."""
    return _change(conn, webhook_id, disabled_at=None, disabled_because=None)


def forget(conn: Connection, webhook_id: int) -> None:
    """Delete the webhook and all that was ever delivered to it."""
    if not conn.execute(delete(webhook).where(webhook.c.id == webhook_id)).rowcount:
        raise _missing(webhook_id)


def from_row(row: Row[tuple[Any, ...]]) -> Webhook:
    return Webhook(
        id=row.id,
        url=row.url,
        events=frozenset(Event(event) for event in row.events),
        shape=Shape(row.shape),
        routing_key=row.routing_key,
        secret=row.secret,
        old_secret=row.old_secret,
        old_secret_until=row.old_secret_until,
        created_at=row.created_at,
        disabled_at=row.disabled_at,
        disabled_because=row.disabled_because,
    )


def _change(conn: Connection, webhook_id: int, **values: Any) -> Webhook:
    row = conn.execute(
        update(webhook).where(webhook.c.id == webhook_id).values(**values).returning(webhook)
    ).one_or_none()
    if row is None:
        raise _missing(webhook_id)
    return from_row(row)


def _missing(webhook_id: int) -> NotFound:
    return NotFound(f"there is no webhook {webhook_id}")
