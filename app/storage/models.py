"""Models: what is watched, and with which settings."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, delete, select, text, update
from sqlalchemy.dialects.postgresql import insert

from app.domain.model import AlarmPolicy, Model, ModelSettings
from app.domain.window import Window, WindowKind
from app.errors import Conflict, NotFound, Outdated
from app.storage import tables
from app.storage.db import binary_rows

model = tables.model
reference = tables.reference


# What goes with a model; references go by themselves.
OWNED = (
    tables.arrival,
    tables.pane,
    tables.contribution,
    tables.source,
    tables.rollup,
    tables.batch,
    tables.late,
    tables.prediction,
    tables.detector,
    tables.evaluation,
    tables.alarm,
    tables.alarm_change,
)

# How soon after an evaluation the next one may be. It bounds what a busy model takes of a worker,
# and it is as long as a transaction may take to be noticed by its arrival alone.
AT_MOST_EVERY = timedelta(seconds=1)
# Nobody evaluates for longer than this; after it, another worker may try.
LEASE = timedelta(seconds=60)
# A model whose evaluation fails is tried again ever later, up to this.
LONGEST_PAUSE = timedelta(minutes=10)

# What a worker listens on to be told that a model has become due.
CHANNEL = "shiftwatch_due"


def get(conn: Connection, name: str, *, lock: bool = False) -> Model:
    """The model of that name; `lock` keeps others from changing it until the transaction ends."""
    found = find(conn, name, lock=lock)
    if found is None:
        raise NotFound(f"there is no model {name!r}")
    return found


def find(conn: Connection, name: str, *, lock: bool = False) -> Model | None:
    query = select(model).where(model.c.name == name)
    row = conn.execute(query.with_for_update() if lock else query).one_or_none()
    return None if row is None else _models(conn, [row])[0]


def page(conn: Connection, after: str | None, limit: int) -> list[Model]:
    """Up to `limit` models by name, the first after `after`."""
    query = select(model).order_by(model.c.name).limit(limit)
    if after is not None:
        query = query.where(model.c.name > after)
    return _models(conn, conn.execute(query).all())


def every(conn: Connection) -> list[Model]:
    return _models(conn, conn.execute(select(model).order_by(model.c.id)).all())


def put(
    conn: Connection,
    name: str,
    settings: ModelSettings,
    now: datetime,
    if_match: str | None = None,
) -> tuple[Model, bool]:
    """Register the model or change its settings; says whether it is new."""
    current = find(conn, name, lock=True)
    _refuse_outdated(name, current, if_match)
    if current is None:
        if _insert(conn, name, settings, now):
            return get(conn, name), True
        current = get(conn, name, lock=True)
    _refuse_to_reinterpret(current, settings)
    if settings != current.settings:
        _change(conn, current, now, due_at=now, **_values(settings))
    return get(conn, name), False


def forget(conn: Connection, name: str, if_match: str | None = None) -> None:
    """Delete the model and everything that was ever recorded of it."""
    found = get(conn, name, lock=True)
    _refuse_outdated(name, found, if_match)
    # Years of panes take longer than any other statement may.
    conn.execute(text("SET LOCAL statement_timeout = 0"))
    for table in OWNED:
        conn.execute(delete(table).where(table.c.model_id == found.id))
    conn.execute(delete(model).where(model.c.id == found.id))


def activate(conn: Connection, changed: Model, version: str, now: datetime) -> None:
    """Make `version` the one that predictions without a version belong to."""
    if changed.active_version != version:
        conn.execute(
            update(reference)
            .where(reference.c.model_id == changed.id, reference.c.version == version)
            .values(activated_at=now)
        )
    # The revision grows even when nothing is switched: a version may have been added. The worker
    # must know from when on predictions of it are waited for.
    _change(conn, changed, now, active_version=version, due_at=now)


def touch(conn: Connection, changed: Model, now: datetime) -> None:
    """Note that something about the model changed, so that nobody relies on an older copy."""
    _change(conn, changed, now)


def drop_version(conn: Connection, changed: Model, version: str, now: datetime) -> None:
    """Note that a version has no reference any more; if it was active, no version is."""
    active = None if changed.active_version == version else changed.active_version
    # The worker must resolve alarms about predictions that the version waited for.
    _change(conn, changed, now, active_version=active, due_at=now)


@dataclass(frozen=True, slots=True)
class Held:
    """What a transaction needs to know of a model that it keeps from being forgotten."""

    revision: int
    due: bool


_HOLD = (
    "SELECT id, revision, coalesce(due_at <= %s, false) FROM model"
    " WHERE id = ANY(%s) ORDER BY id FOR KEY SHARE"
)


def hold(conn: Connection, ids: Iterable[int], now: datetime) -> dict[int, Held]:
    """Keep these models from being forgotten until the transaction ends; those that exist."""
    rows = binary_rows(conn, _HOLD, (now + AT_MOST_EVERY, sorted(set(ids))))
    return {id: Held(revision, due) for id, revision, due in rows}


_MARK_DUE = text(
    "UPDATE model SET due_at = :now WHERE id IN ("
    " SELECT id FROM model WHERE id = ANY(:ids) AND (due_at IS NULL OR due_at > :now)"
    " ORDER BY id FOR NO KEY UPDATE)"
)
_TELL = text("SELECT pg_notify(:channel, '')")


def mark_due(conn: Connection, ids: Iterable[int], now: datetime) -> None:
    """Ask for an evaluation of these models.

    One that is due already is better not named: otherwise it would be a row that all writers
    wait for.
    """
    conn.execute(_MARK_DUE, {"ids": sorted(set(ids)), "now": now})
    conn.execute(_TELL, {"channel": CHANNEL})


_LEASE = text(
    "UPDATE model SET leased_until = :until WHERE id = ("
    " SELECT id FROM model WHERE due_at <= :now AND (leased_until IS NULL OR leased_until <= :now)"
    " ORDER BY due_at, id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) RETURNING id"
)


def lease(conn: Connection, now: datetime) -> int | None:
    """Reserve the model that has been due for longest, so that no other worker takes it.

    The lease is committed before the work begins: a model that takes its worker down with it is
    not the first thing that the next one tries. That the lease itself survives a crash of the
    database does not matter, so its commit waits for no disk.
    """
    conn.execute(text("SET LOCAL synchronous_commit = off"))
    found: int | None = conn.execute(
        _LEASE, {"now": now, "until": now + LEASE}
    ).scalar_one_or_none()
    return found


def lock(conn: Connection, model_id: int) -> tuple[Model, datetime | None] | None:
    """Keep a model's alarms and detectors to oneself, and say when it was last evaluated.

    None if it is gone. Ingest goes on: it only keeps the model from being forgotten.
    """
    query = select(model).where(model.c.id == model_id)
    row = conn.execute(query.with_for_update(key_share=True)).one_or_none()
    return None if row is None else (_models(conn, [row])[0], row.evaluated_at)


def evaluated(conn: Connection, model_id: int, due_at: datetime | None, now: datetime) -> None:
    """Note that a model was evaluated, and when it is due again."""
    conn.execute(
        update(model)
        .where(model.c.id == model_id)
        .values(evaluated_at=now, due_at=due_at, leased_until=None, failures=0)
    )


def release(conn: Connection, model_id: int) -> None:
    """Give a lease back."""
    conn.execute(update(model).where(model.c.id == model_id).values(leased_until=None))


_POSTPONE = text(
    "UPDATE model SET failures = failures + 1, due_at = :now,"
    " leased_until = :now + least(:longest, interval '5 seconds' * power(2, least(failures, 10)))"
    " WHERE id = :id"
)


def postpone(conn: Connection, model_id: int, now: datetime) -> None:
    """Note that an evaluation failed: it is tried again, each time later than the last.

    It stays leased for so long: what comes in meanwhile makes it due, but not sooner tried.
    """
    conn.execute(_POSTPONE, {"id": model_id, "now": now, "longest": LONGEST_PAUSE})


_OVERLOOKED = text(
    "UPDATE model SET due_at = :now WHERE (due_at IS NULL OR due_at > :now) AND id IN ("
    " SELECT model_id FROM arrival WHERE arrived_at < :before)"
)


def mark_overlooked(conn: Connection, now: datetime) -> None:
    """Make due what has arrivals that nobody will look at soon.

    Whoever counts leaves a model alone that is due already; if it is evaluated just before he
    commits, his arrival is found here.
    """
    conn.execute(_OVERLOOKED, {"now": now, "before": now - 2 * AT_MOST_EVERY})


def _insert(conn: Connection, name: str, settings: ModelSettings, now: datetime) -> bool:
    added = conn.execute(
        insert(model)
        .values(name=name, created_at=now, updated_at=now, **_values(settings))
        .on_conflict_do_nothing(index_elements=[model.c.name])
        .returning(model.c.id)
    )
    return added.one_or_none() is not None


def _change(conn: Connection, changed: Model, now: datetime, **values: Any) -> None:
    conn.execute(
        update(model)
        .where(model.c.id == changed.id)
        .values(revision=model.c.revision + 1, updated_at=now, **values)
    )


def _refuse_outdated(name: str, current: Model | None, if_match: str | None) -> None:
    if if_match is not None and (current is None or current.etag != if_match):
        raise Outdated(f"model {name!r} is not in the state that If-Match names")


def _refuse_to_reinterpret(current: Model, settings: ModelSettings) -> None:
    """What is stored was counted by these labels in these panes; it cannot be recounted."""
    if not current.versions:
        return
    if settings.labels != current.labels:
        raise Conflict(f"model {current.name!r} has references: its labels cannot be changed")
    if settings.pane != current.settings.pane:
        raise Conflict(f"model {current.name!r} has references: its pane cannot be changed")


def _values(settings: ModelSettings) -> dict[str, Any]:
    return {
        "labels": list(settings.labels),
        "pane": settings.pane,
        "windows": [_window_values(window) for window in settings.windows],
        "alarm": _alarm_values(settings.alarm),
        "allowed_lateness": settings.allowed_lateness,
        "keep_ids": settings.keep_ids,
        "estimator": settings.estimator,
    }


def _alarm_values(policy: AlarmPolicy) -> dict[str, Any]:
    """As JSON, with durations in seconds."""
    return {
        name: value.total_seconds() if isinstance(value, timedelta) else value
        for name, value in asdict(policy).items()
    }


# Rows that an earlier release wrote lack what has been added since: that has its default.
_DURATIONS = {
    "per",
    "min_duration",
    "cooldown",
    "renotify",
    "no_data_after",
    "ingest_stopped_after",
}


def _alarm(values: Mapping[str, Any]) -> AlarmPolicy:
    known: dict[str, Any] = {
        name: timedelta(seconds=value) if name in _DURATIONS and value is not None else value
        for name, value in values.items()
    }
    return AlarmPolicy(**known)


def _window_values(window: Window) -> dict[str, Any]:
    length = None if window.length is None else window.length.total_seconds()
    return {"name": window.name, "kind": window.kind, "length": length, "count": window.count}


def _models(conn: Connection, rows: Sequence[Row[Any]]) -> list[Model]:
    versions: defaultdict[int, dict[str, datetime]] = defaultdict(dict)
    found = conn.execute(
        select(reference.c.model_id, reference.c.version, reference.c.created_at).where(
            reference.c.model_id.in_([row.id for row in rows])
        )
    )
    for model_id, version, created_at in found:
        versions[model_id][version] = created_at
    return [_model(row, versions[row.id]) for row in rows]


def _model(row: Row[Any], versions: Mapping[str, datetime]) -> Model:
    settings = ModelSettings(
        labels=tuple(row.labels),
        pane=row.pane,
        windows=tuple(_window(value) for value in row.windows),
        alarm=_alarm(row.alarm),
        allowed_lateness=row.allowed_lateness,
        keep_ids=row.keep_ids,
        estimator=row.estimator,
    )
    return Model(
        row.id, row.name, settings, row.revision, versions, row.active_version, row.updated_at
    )


def _window(value: Mapping[str, Any]) -> Window:
    length = None if value["length"] is None else timedelta(seconds=value["length"])
    return Window(value["name"], WindowKind(value["kind"]), length, value["count"])
