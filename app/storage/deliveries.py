"""Deliveries: each notice for each webhook, until it has arrived or is given up.

The table is the queue. Whoever takes a delivery leases it; a lease that runs out is anybody's
again, so that a crash costs a receiver at most a second copy.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    any_,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB

from app.domain.alarm import AlarmState
from app.domain.notice import Event
from app.errors import Conflict, NotFound
from app.storage import partitions, webhooks
from app.storage.partitions import Partition
from app.storage.tables import alarm, delivery, webhook
from app.storage.webhooks import Webhook


class State(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One notice for one webhook, and what became of it."""

    id: int
    webhook_id: int
    alarm_id: int | None
    event: Event
    message_id: str
    state: State
    attempts: int
    created_at: datetime
    due_at: datetime
    settled_at: datetime | None
    status_code: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Claimed:
    """A delivery that is ours to send until the lease runs out; `attempts` counts this one."""

    id: int
    attempts: int
    event: Event
    message_id: str
    notice: Mapping[str, Any] = field(repr=False)
    webhook: Webhook
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    status_code: int


@dataclass(frozen=True, slots=True)
class RetryAt:
    at: datetime
    error: str
    status_code: int | None = None


@dataclass(frozen=True, slots=True)
class GaveUp:
    """`gone`: the receiver wants nothing more, ever."""

    error: str
    status_code: int | None = None
    gone: bool = False


Outcome = Delivered | RetryAt | GaveUp


@dataclass(frozen=True, slots=True)
class Tally:
    """How one webhook is doing: what waits, what was given up, and what was last on its way."""

    pending: int
    dead: int
    last: Delivery | None


# Nobody is told that something ended, or is looked after, that he was never told about.
SEQUELS = frozenset({Event.ACKNOWLEDGED, Event.RESOLVED})


def queue(
    conn: Connection,
    notice: Mapping[str, Any],
    event: str,
    alarm_id: int | None,
    now: datetime,
    trace: str | None = None,
) -> int:
    """Tell every enabled webhook that wants to know of the event; says how many there are."""
    wanted = webhook.c.disabled_at.is_(None) & (event == any_(webhook.c.events))
    if event in SEQUELS:
        wanted &= _told_of(alarm_id)
    return len(_insert(conn, wanted, notice, event, alarm_id, now, trace))


def queue_for(
    conn: Connection,
    webhook_id: int,
    notice: Mapping[str, Any],
    event: str,
    alarm_id: int | None,
    now: datetime,
    trace: str | None = None,
) -> Delivery:
    """Tell one webhook, whatever else it wants to know of."""
    _refuse_disabled(webhooks.get(conn, webhook_id))
    rows = _insert(conn, webhook.c.id == webhook_id, notice, event, alarm_id, now, trace)
    if not rows:
        raise NotFound(f"there is no webhook {webhook_id}")
    return _delivery(rows[0])


def claim(conn: Connection, now: datetime, lease: timedelta) -> Claimed | None:
    """Take the delivery that has been due for longest, if there is any."""
    found = conn.execute(
        select(delivery.c.id)
        .join(webhook)
        .where(*_claimable(now))
        .order_by(delivery.c.due_at, delivery.c.id)
        .limit(1)
        .with_for_update(of=delivery, skip_locked=True)
    ).scalar_one_or_none()
    if found is None:
        return None
    row = conn.execute(
        update(delivery)
        .where(delivery.c.id == found)
        .values(leased_until=now + lease, attempts=delivery.c.attempts + 1)
        .returning(delivery)
    ).one()
    return Claimed(
        id=row.id,
        attempts=row.attempts,
        event=Event(row.event),
        message_id=row.message_id,
        notice=row.notice,
        webhook=webhooks.get(conn, row.webhook_id),
        trace=row.trace,
    )


def settle(conn: Connection, claimed: Claimed, outcome: Outcome, now: datetime) -> bool:
    """Note what became of a delivery; says whether it was still ours.

    If it was not, the lease ran out and somebody else has taken it: his word counts.
    """
    gone = isinstance(outcome, GaveUp) and outcome.gone
    if gone:
        # Before the delivery, like whoever forgets a webhook; otherwise the two can deadlock.
        conn.execute(
            select(webhook.c.id).where(webhook.c.id == claimed.webhook.id).with_for_update()
        )
    ours = conn.execute(
        update(delivery)
        .where(
            delivery.c.id == claimed.id,
            delivery.c.state == State.PENDING,
            delivery.c.attempts == claimed.attempts,
        )
        .values(leased_until=None, status_code=outcome.status_code, **_settled(outcome, now))
    ).rowcount
    if ours and isinstance(outcome, GaveUp) and gone:
        webhooks.disable(conn, claimed.webhook.id, outcome.error, now)
    return bool(ours)


def page(
    conn: Connection, webhook_id: int, state: State | None, before: int | None, limit: int
) -> list[Delivery]:
    """Up to `limit` deliveries of a webhook, newest first, the first before the id `before`."""
    query = (
        select(*_SHOWN)
        .where(delivery.c.webhook_id == webhook_id)
        .order_by(delivery.c.id.desc())
        .limit(limit)
    )
    if state is not None:
        query = query.where(delivery.c.state == state)
    if before is not None:
        query = query.where(delivery.c.id < before)
    return [_delivery(row) for row in conn.execute(query)]


def replay(conn: Connection, delivery_id: int, now: datetime, trace: str | None = None) -> Delivery:
    """Send the same notice again, under the same message id and with all its attempts."""
    old = conn.execute(
        select(delivery.c.webhook_id, delivery.c.state)
        .where(delivery.c.id == delivery_id)
        .with_for_update()
    ).one_or_none()
    if old is None:
        raise NotFound(f"there is no delivery {delivery_id}")
    if old.state == State.PENDING:
        raise Conflict(f"delivery {delivery_id} is still pending")
    _refuse_disabled(webhooks.get(conn, old.webhook_id))
    row = conn.execute(
        update(delivery)
        .where(delivery.c.id == delivery_id)
        .values(
            state=State.PENDING,
            attempts=0,
            due_at=now,
            settled_at=None,
            status_code=None,
            error=None,
            trace=trace,
        )
        .returning(*_SHOWN)
    ).one()
    return _delivery(row)


def why_needed(conn: Connection, partition: Partition) -> str | None:
    """What a partition is still needed for, if it is.

    Who was told of an alarm will be told of its end: the last that he was told must stay.
    """
    first, end = partition.first_moment, partition.end_moment
    own = (delivery.c.created_at >= first) & (delivery.c.created_at < end)
    if conn.execute(select(exists().where(own, delivery.c.state == State.PENDING))).scalar_one():
        return "a delivery is pending"
    later = delivery.alias("later")
    told_last = exists().where(
        own,
        delivery.c.alarm_id == alarm.c.id,
        alarm.c.state != AlarmState.RESOLVED,
        ~exists().where(
            later.c.webhook_id == delivery.c.webhook_id,
            later.c.alarm_id == delivery.c.alarm_id,
            later.c.created_at >= end,
        ),
    )
    return "an open alarm was told of" if conn.execute(select(told_last)).scalar_one() else None


def tally(conn: Connection, webhook_id: int) -> Tally:
    row = conn.execute(
        select(
            func.count().filter(delivery.c.state == State.PENDING).label("pending"),
            func.count().filter(delivery.c.state == State.DEAD).label("dead"),
        ).where(delivery.c.webhook_id == webhook_id, delivery.c.state != State.DELIVERED)
    ).one()
    last = page(conn, webhook_id, None, None, 1)
    return Tally(row.pending, row.dead, last[0] if last else None)


# Lists go without the notices: a page of them would be megabytes.
_SHOWN = [column for column in delivery.c if column.name not in ("notice", "leased_until")]


def _told_of(alarm_id: int | None) -> ColumnElement[bool]:
    return exists().where(delivery.c.webhook_id == webhook.c.id, delivery.c.alarm_id == alarm_id)


def _insert(
    conn: Connection,
    wanted: ColumnElement[bool],
    notice: Mapping[str, Any],
    event: str,
    alarm_id: int | None,
    now: datetime,
    trace: str | None,
) -> list[Row[Any]]:
    partitions.ensure(conn, [partitions.containing("delivery", now)])
    # Held so that none of them is forgotten before the commit: the foreign key would break, and
    # with it the evaluation that had something to tell.
    held = (
        select(webhook.c.id)
        .where(wanted)
        .order_by(webhook.c.id)
        .with_for_update(read=True, key_share=True)
        .cte("held")
    )
    values: Select[Any] = select(
        held.c.id,
        literal(alarm_id, delivery.c.alarm_id.type),
        literal(event),
        literal(f"msg_{uuid.uuid4().hex}"),
        literal(dict(notice), JSONB),
        literal(State.PENDING),
        literal(now),
        literal(now),
        literal(trace, delivery.c.trace.type),
    )
    columns = ("webhook_id", "alarm_id", "event", "message_id", "notice", "state")
    statement = insert(delivery).from_select([*columns, "created_at", "due_at", "trace"], values)
    return list(conn.execute(statement.returning(*_SHOWN)))


def _claimable(now: datetime) -> list[ColumnElement[bool]]:
    other = delivery.alias("other")
    of_this_webhook = (other.c.webhook_id == delivery.c.webhook_id) & (
        other.c.state == State.PENDING
    )
    return [
        delivery.c.state == State.PENDING,
        delivery.c.due_at <= now,
        or_(delivery.c.leased_until.is_(None), delivery.c.leased_until <= now),
        webhook.c.disabled_at.is_(None),
        # What is told of one alarm arrives in its order: nothing ends before it began.
        ~exists().where(
            of_this_webhook,
            other.c.alarm_id == delivery.c.alarm_id,
            other.c.id < delivery.c.id,
        ),
        # One at a time for each webhook: a receiver that never answers must not keep all workers
        # busy. Two that look at the same moment may still take two; that does no harm.
        ~exists().where(of_this_webhook, other.c.leased_until > now),
    ]


def _settled(outcome: Outcome, now: datetime) -> dict[str, Any]:
    match outcome:
        case Delivered():
            return {"state": State.DELIVERED, "settled_at": now, "error": None}
        case RetryAt():
            return {"due_at": outcome.at, "error": outcome.error}
        case GaveUp():
            return {"state": State.DEAD, "settled_at": now, "error": outcome.error}


def _refuse_disabled(found: Webhook) -> None:
    if found.disabled_at is not None:
        raise Conflict(f"webhook {found.id} is disabled; enable it first")


def _delivery(row: Row[Any]) -> Delivery:
    return Delivery(
        id=row.id,
        webhook_id=row.webhook_id,
        alarm_id=row.alarm_id,
        event=Event(row.event),
        message_id=row.message_id,
        state=State(row.state),
        attempts=row.attempts,
        created_at=row.created_at,
        due_at=row.due_at,
        settled_at=row.settled_at,
        status_code=row.status_code,
        error=row.error,
    )
