"""Alarms: the open ones, those that are over, and who did what to them when."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, func, insert, select, text, update

from app.domain.alarm import Alarm, AlarmKind, AlarmState, Change, Severity
from app.domain.verdict import Verdict
from app.errors import NotFound
from app.storage.tables import alarm, alarm_change, detector, model

AlarmKey = tuple[str, AlarmKind]


@dataclass(frozen=True, slots=True)
class Owned:
    """An alarm and the model that it is about."""

    model_id: int
    model: str
    alarm: Alarm


@dataclass(frozen=True, slots=True)
class PastChange:
    """What happened to an alarm, why, and who did it, if it was a person."""

    at: datetime
    event: str
    state: AlarmState
    reason: str
    by: str | None
    note: str | None


@dataclass(frozen=True, slots=True)
class Line:
    """An alarm in a list: without its evidence, which may be megabytes for a page of them."""

    id: int
    model: str
    version: str
    kind: AlarmKind
    state: AlarmState
    severity: Severity
    verdict: Verdict | None
    reason: str
    since: datetime
    onset: datetime | None
    acknowledged_by: str | None
    resolved_at: datetime | None


def open_of(conn: Connection, model_id: int) -> dict[AlarmKey, Alarm]:
    """The alarms of a model that are not over, by version and kind."""
    rows = conn.execute(
        select(alarm).where(alarm.c.model_id == model_id, alarm.c.state != AlarmState.RESOLVED)
    )
    return {(row.version, AlarmKind(row.kind)): _alarm(row) for row in rows}


def models_with_open(conn: Connection) -> set[int]:
    """The models that have an alarm which is not over."""
    rows = conn.execute(select(alarm.c.model_id).where(alarm.c.state != AlarmState.RESOLVED))
    return set(rows.scalars())


def last_resolved(conn: Connection, model_id: int) -> dict[AlarmKey, datetime]:
    """When the last alarm of each version and kind ended."""
    rows = conn.execute(
        select(alarm.c.version, alarm.c.kind, func.max(alarm.c.resolved_at).label("at"))
        .where(alarm.c.model_id == model_id, alarm.c.state == AlarmState.RESOLVED)
        .group_by(alarm.c.version, alarm.c.kind)
    )
    return {(row.version, AlarmKind(row.kind)): row.at for row in rows}


def shift_firing(conn: Connection, model_id: int, version: str) -> bool | None:
    """Whether this version is known to have shifted; None while its detectors are not armed.

    It has while a shift alarm is up, and also once its new mix was accepted as normal: that ends
    the alarm, not the distance from the reference.
    """
    state = conn.execute(
        select(
            detector.c.state["phi"].as_float().label("phi"),
            (detector.c.state["accepted"].astext.is_not(None)).label("accepted"),
        ).where(detector.c.model_id == model_id, detector.c.version == version)
    ).one_or_none()
    if state is None or state.phi is None:
        return None
    if state.accepted:
        return True
    found = conn.execute(
        select(alarm.c.id).where(
            alarm.c.model_id == model_id,
            alarm.c.version == version,
            alarm.c.kind == AlarmKind.SHIFT,
            alarm.c.state.in_([AlarmState.FIRING, AlarmState.ACKNOWLEDGED]),
        )
    )
    return found.first() is not None


def put(conn: Connection, model_id: int, changed: Alarm) -> Alarm:
    """Keep an alarm; one that is new gets its id."""
    values = _values(changed)
    if changed.id is not None:
        conn.execute(
            update(alarm)
            .where(alarm.c.model_id == model_id, alarm.c.id == changed.id)
            .values(**values)
        )
        return changed
    added = conn.execute(insert(alarm).values(model_id=model_id, **values).returning(alarm.c.id))
    return replace(changed, id=added.scalar_one())


def note(
    conn: Connection,
    model_id: int,
    changed: Alarm,
    change: Change,
    at: datetime,
    *,
    by: str | None = None,
    comment: str | None = None,
) -> None:
    """Write into the alarm's history what happened to it."""
    conn.execute(
        insert(alarm_change).values(
            model_id=model_id,
            alarm_id=changed.id,
            at=at,
            event=change.event,
            state=changed.state,
            reason=change.reason,
            by=by,
            note=comment,
        )
    )


def history(conn: Connection, owned: Owned) -> list[PastChange]:
    """What happened to an alarm, the first thing first."""
    rows = conn.execute(
        select(alarm_change)
        .where(alarm_change.c.model_id == owned.model_id, alarm_change.c.alarm_id == owned.alarm.id)
        .order_by(alarm_change.c.id)
    )
    return [
        PastChange(row.at, row.event, AlarmState(row.state), row.reason, row.by, row.note)
        for row in rows
    ]


def get(conn: Connection, alarm_id: int) -> Owned:
    row = conn.execute(_WITH_MODEL.where(alarm.c.id == alarm_id)).one_or_none()
    if row is None:
        raise NotFound(f"there is no alarm {alarm_id}")
    return Owned(row.model_id, row.model_name, _alarm(row))


def page(
    conn: Connection,
    *,
    model_name: str | None = None,
    state: AlarmState | None = None,
    kind: AlarmKind | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[Owned]:
    """Up to `limit` alarms, newest first."""
    wanted = _traits(state, kind)
    if model_name is not None:
        wanted.append(model.c.name == model_name)
    if before is not None:
        wanted.append(alarm.c.id < before)
    rows = conn.execute(_WITH_MODEL.where(*wanted).order_by(alarm.c.id.desc()).limit(limit))
    return [Owned(row.model_id, row.model_name, _alarm(row)) for row in rows]


def open_first(
    conn: Connection,
    search: str,
    state: AlarmState | None,
    kind: AlarmKind | None,
    limit: int,
    offset: int = 0,
) -> tuple[list[Line], int]:
    """Alarms of models with `search` in their name, and how many there are in all."""
    wanted = _traits(state, kind)
    if search:
        wanted.append(model.c.name.icontains(search, autoescape=True))
    shown = [alarm.c[one.name] for one in fields(Line) if one.name != "model"]
    query: Select[Any] = (
        select(*shown, model.c.name.label("model_name"), func.count().over().label("total"))
        .join(model, model.c.id == alarm.c.model_id)
        .where(*wanted)
        .order_by(alarm.c.state == AlarmState.RESOLVED, alarm.c.id.desc())
    )
    rows = conn.execute(query.limit(limit).offset(offset)).all()
    return [_line(row) for row in rows], rows[0].total if rows else 0


def _traits(state: AlarmState | None, kind: AlarmKind | None) -> list[ColumnElement[bool]]:
    wanted = {alarm.c.state: state, alarm.c.kind: kind}
    return [column == value for column, value in wanted.items() if value is not None]


# The end of the last alarm is what a cooldown is counted from.
_FORGET = text(
    "WITH gone AS (DELETE FROM alarm WHERE (model_id, id) IN ("
    "  SELECT alarm.model_id, alarm.id FROM alarm JOIN model ON model.id = alarm.model_id"
    "  WHERE alarm.state = 'resolved' AND alarm.resolved_at < :before - make_interval("
    "   secs => coalesce(CAST(model.alarm ->> 'cooldown' AS double precision), 0))"
    "  LIMIT :limit)"
    " RETURNING model_id, id),"
    " changes AS (DELETE FROM alarm_change USING gone"
    "  WHERE alarm_change.model_id = gone.model_id AND alarm_change.alarm_id = gone.id)"
    " SELECT count(*) FROM gone"
)


def forget(conn: Connection, before: datetime, limit: int) -> int:
    """Forget up to `limit` alarms that were over before then, with their history."""
    found: int = conn.execute(_FORGET, {"before": before, "limit": limit}).scalar_one()
    return found


_WITH_MODEL = select(alarm, model.c.name.label("model_name")).join(
    model, model.c.id == alarm.c.model_id
)

_COLUMNS = [one.name for one in fields(Alarm) if one.name != "id"]


def _values(changed: Alarm) -> dict[str, Any]:
    values = {name: getattr(changed, name) for name in _COLUMNS}
    return {**values, "evidence": dict(changed.evidence)}


def _line(row: Row[Any]) -> Line:
    own = {one.name: getattr(row, one.name) for one in fields(Line) if one.name != "model"}
    return Line(**{**own, **_typed(row), "model": row.model_name})


def _alarm(row: Row[Any]) -> Alarm:
    own: Mapping[str, Any] = {name: getattr(row, name) for name in (*_COLUMNS, "id")}
    return Alarm(**{**own, **_typed(row)})


def _typed(row: Row[Any]) -> dict[str, Any]:
    return {
        "kind": AlarmKind(row.kind),
        "state": AlarmState(row.state),
        "severity": Severity(row.severity),
        "verdict": None if row.verdict is None else Verdict(row.verdict),
    }
