"""What people do to alarms: acknowledge them, call them over, accept the new mix as normal.

Each takes the model's lock, so that no evaluation steps the same alarm at the same time.
"""

from datetime import datetime

import numpy as np

from app.domain import alarm as domain
from app.domain import watch as watching
from app.domain.alarm import Alarm, AlarmKind
from app.domain.model import Model
from app.domain.times import of_mark
from app.domain.verdict import Verdict
from app.domain.watch import Detectors, Watch
from app.errors import Conflict, NotFound
from app.evaluate.look import Evaluator, subject
from app.evaluate.tell import Alarms
from app.storage import alarms, detectors, models, panes
from app.storage.alarms import Owned
from app.storage.db import Connection


def acknowledge(
    conn: Connection, alarm_id: int, by: str, note: str | None, now: datetime, public_url: str
) -> Owned:
    """Somebody looks after it: it is not told of again."""
    model, told, alarm = _locked(conn, alarm_id, public_url, now)
    if not alarm.was_raised:
        raise Conflict(f"alarm {alarm_id} is pending: nobody has been told of it yet")
    changed, change = domain.acknowledge(alarm, by, now)
    return _owned(model, told.apply(changed, change, now, _no_estimate, by=by, note=note))


def resolve(
    conn: Connection,
    evaluator: Evaluator,
    alarm_id: int,
    by: str,
    note: str | None,
    now: datetime,
    public_url: str,
) -> Owned:
    """Somebody says that it is over. If it is not, the detectors will say so again."""
    model, told, alarm = _locked(conn, alarm_id, public_url, now)
    watch = _watch(conn, model, alarm)
    if alarm.kind is AlarmKind.SHIFT:
        watch = watching.without_shift(watch, _own(conn, evaluator, model, alarm.version))
    # Also of a shift: what else has moved was told as a part of it.
    watch = watching.without_violation(watch)
    detectors.put(conn, model.id, alarm.version, watch)
    changed, change = domain.resolve(alarm, f"resolved by {by}", now)
    return _owned(model, told.apply(changed, change, now, _no_estimate, by=by, note=note))


def accept(
    conn: Connection,
    evaluator: Evaluator,
    alarm_id: int,
    by: str,
    note: str | None,
    now: datetime,
    public_url: str,
) -> Owned:
    """Somebody says that the mix since the onset is the new normal."""
    model, told, alarm = _locked(conn, alarm_id, public_url, now)
    watch = _watch(conn, model, alarm)
    raised = watch.shifted
    untrue = alarm.verdict is Verdict.NOT_LABEL_SHIFT
    if alarm.kind is not AlarmKind.SHIFT or raised is None or untrue:
        raise Conflict(
            f"alarm {alarm_id} is about more than the mix of predictions: what the model makes of "
            "it now takes a new reference"
        )
    since = panes.counts(
        conn, model.id, alarm.version, of_mark(raised.onset), now + model.settings.pane
    )
    own = _own(conn, evaluator, model, alarm.version)
    start = of_mark(raised.onset)
    look = evaluator.between(
        conn, subject(conn, model, alarm.version), start, now + model.settings.pane, now
    )
    seen = np.zeros(model.k, dtype=np.int64) if since is None else since
    mix = look.basis.hard.diagnosis.nu if look.analysis.labels is None else look.analysis.labels.q
    detectors.put(conn, model.id, alarm.version, watching.accept(watch, own, seen, mix))
    changed, change = domain.resolve(alarm, f"accepted as the new normal by {by}", now)
    return _owned(model, told.apply(changed, change, now, _no_estimate, by=by, note=note))


def _locked(
    conn: Connection, alarm_id: int, public_url: str, now: datetime
) -> tuple[Model, Alarms, Alarm]:
    found = alarms.get(conn, alarm_id)
    locked = models.lock(conn, found.model_id)
    if locked is None:
        raise NotFound(f"there is no alarm {alarm_id}")
    model, _ = locked
    # Read again: it may have changed while we waited for the lock.
    alarm = alarms.get(conn, alarm_id).alarm
    if not alarm.is_open:
        raise Conflict(f"alarm {alarm_id} is over since {alarm.resolved_at:%Y-%m-%d %H:%M} UTC")
    return model, Alarms.of(conn, model, public_url, now), alarm


def _watch(conn: Connection, model: Model, alarm: Alarm) -> Watch:
    found = detectors.find(conn, model.id, alarm.version)
    if alarm.kind in domain.BLIND or found is None:
        raise Conflict(
            f"alarm {alarm.id} ends by itself when predictions come in; acknowledge or silence it"
        )
    return found


def _own(conn: Connection, evaluator: Evaluator, model: Model, version: str) -> Detectors:
    arl = model.settings.alarm.average_run_length(model.settings.pane)
    return watching.detectors(evaluator.prepared(conn, model, version).reference, arl)


def _owned(model: Model, alarm: Alarm) -> Owned:
    return Owned(model.id, model.name, alarm)


def _no_estimate() -> None:
    return None
